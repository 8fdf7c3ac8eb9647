/* A unit test of a split table: names and shapes, no model and no device (docs/split-tables.md).
 *
 *     cc split_table.c $(pkg-config --cflags --libs libsheaf) -o split_table && ./split_table
 */
#include <splitstate/splitstate.h>
#include <stdio.h>
#include <string.h>

static const char table[] = "group attention heads 9 3\n"
                            "group feed-forward columns\n"
                            "blk\\.(\\d+)\\.attn_q\\.weight       attention     1  q\n"
                            "blk\\.(\\d+)\\.attn_[kv]\\.weight    attention     1  kv\n"
                            "blk\\.(\\d+)\\.attn_output\\.weight  attention     0  q\n"
                            "blk\\.(\\d+)\\.ffn_up\\.weight       feed-forward  1\n"
                            "blk\\.(\\d+)\\.ffn_down\\.weight     feed-forward  0\n"
                            "blk\\.\\d+\\.\\w+_norm\\.weight      mirrored\n";

static const char list[] = "blk.{0-1}.attn_norm.weight    576 f32\n"
                           "blk.{0-1}.attn_q.weight       576 576 q8_0\n"
                           "blk.{0-1}.attn_k.weight       576 192 q8_0\n"
                           "blk.{0-1}.attn_v.weight       576 192 q8_0\n"
                           "blk.{0-1}.attn_output.weight  576 576 q8_0\n"
                           "blk.{0-1}.ffn_up.weight       576 1536 q8_0\n"
                           "blk.{0-1}.ffn_down.weight     1536 576 q8_0\n";

static int expect(const sheaf_trial *t, const char *name, const char *want) {
    char have[256];
    sheaf_layout_text(&sheaf_trial_placement(t, name)->layout, have, sizeof have);
    if (strcmp(have, want) == 0) return 0;
    printf("%s: %s, expected %s\n", name, have, want);
    return 1;
}

int main(void) {
    sheaf_trial *t;
    if (sheaf_trial_new(table, list, 2, NULL, &t)) {
        puts(sheaf_error());
        return 1;
    }
    int wrong = expect(t, "blk.0.attn_q.weight", "AXIS(1) [320:{0}] [256:{1}]")   /* 5 heads and 4 */
                + expect(t, "blk.1.attn_q.weight", "AXIS(1) [256:{0}] [320:{1}]") /* and the other way round */
                + expect(t, "blk.0.attn_k.weight", "AXIS(1) [64:{0}] [64:{0,1}] [64:{1}]") +
                expect(t, "blk.0.attn_norm.weight", "MIRRORED");
    if (sheaf_trial_shares(t)->error_max > 0.005) {
        printf("shares are %.1f %% off\n", 100 * sheaf_trial_shares(t)->error_max);
        wrong++;
    }
    sheaf_trial_free(t);
    return wrong > 0;
}
