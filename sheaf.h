/* All of libsheaf in one include: from a GGUF file to the next token on N devices (docs/first-program.md).
 * Each room's header says its own nouns, owners, errors and thread rules. */
#ifndef SHEAF_H
#define SHEAF_H

#include "models/model.h" /* brings meta/, sched/, splitstate/, collectives/, backends/ and tensor/ */

#endif
