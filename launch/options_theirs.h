/* llama.cpp's flags that do nothing in sheaf, as rows: what a user's script may hold and what is said about it.
 * options.c looks here for a word that is no option of ours. */
#ifndef SHEAF_LAUNCH_OPTIONS_THEIRS_H
#define SHEAF_LAUNCH_OPTIONS_THEIRS_H

#include "launch/launch.h"

typedef enum their_kind {
    THEIRS_NOTE,         /* accepted, does nothing, says so once */
    THEIRS_NOTE_VALUE,   /* the same, and a value follows */
    THEIRS_NOTE_MAYBE,   /* the same, and on, off or auto may follow */
    THEIRS_REFUSE,       /* exit 2, the text is the hint */
    THEIRS_REFUSE_UNLESS /* a value follows: with `harmless` it is noted, else refused */
} their_kind;

typedef struct their_flag {
    const char *names; /* "-x --long --family-*", as in option rows */
    their_kind kind;
    unsigned commands;
    const char *harmless; /* values that ask for what is done anyway: "0 none" */
    const char *why;      /* the note's reason, or the hint */
} their_flag;

/* NULL: llama.cpp has no such flag, or it means nothing to this command. */
const their_flag *their_flag_find(const char *word, command_bit bit);
const their_flag *their_flag_at(int i); /* NULL past the last */
/* Is `value` one of the row's harmless ones? Numbers are compared as numbers. */
bool their_flag_harmless(const their_flag *f, const char *value);

/* Does `word` stand in the blank-separated `names`, of which one that ends with '*' names all that begin so? */
bool word_named(const char *names, const char *word);

#endif
