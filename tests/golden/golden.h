/* Reads the golden files of logits/ and smollm2/ (README.md has the format).
 *
 *     golden g;
 *     if (golden_read(GOLDEN_DIR "/logits/h9k3-q8_0.txt", &g)) ...   a line on stderr has said why
 *     ... g.tokens, g.logits[row * g.n_vocab + id], g.greedy, g.gaps
 *     golden_free(&g);
 */
#ifndef SHEAF_TESTS_GOLDEN_GOLDEN_H
#define SHEAF_TESTS_GOLDEN_GOLDEN_H

enum { GOLDEN_MAX_TOKENS = 128, GOLDEN_MAX_ROWS = 8 };

typedef struct golden {
    char prompt[256]; /* empty where the input is given as ids */
    int n_tokens, tokens[GOLDEN_MAX_TOKENS];
    int n_rows, n_vocab, position[GOLDEN_MAX_ROWS]; /* row r: logits after the token at position[r] */
    float *logits;                                  /* [n_rows][n_vocab], or NULL; owned */
    int n_greedy, greedy[GOLDEN_MAX_TOKENS];
    float gaps[GOLDEN_MAX_TOKENS]; /* best less second best logit, for each of greedy */
} golden;

/* 0, or -1 with a line on stderr and nothing to free. */
int golden_read(const char *path, golden *out);
void golden_free(golden *g);

/* Normalised mean square error of `got` against `want`: sum (got - want)^2 / sum want^2. A NaN in
 * either gives NaN, which no bound holds. */
double golden_nmse(const float *got, const float *want, int n);

#endif
