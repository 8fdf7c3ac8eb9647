/* Was this program built with a sanitizer? Tests of limits on memory, and cases whose number is only there for
 * completeness, ask before they spend minutes. */
#ifndef SHEAF_TESTS_SANITIZED_H
#define SHEAF_TESTS_SANITIZED_H

#ifndef __has_feature
#define __has_feature(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED UNDER_TSAN
#endif

#endif
