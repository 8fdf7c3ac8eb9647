/* How near a run came to what its machine can read: the limit is measured beside the run, and said in words where it
 * cannot be a limit. */
#include "launch/launch.h"

/* Measured again at most this often: each time costs a sixteenth of a second. */
enum { MORE_TRIES = 3 };

sheaf_status machine_limit(size_t bytes, int threads, double seen, double *limit) {
    sheaf_status s = machine_read_gbs(bytes, threads, limit);
    for (int i = 0; i < MORE_TRIES && !s && seen > *limit; i++) {
        double again = 0;
        s = machine_read_gbs(bytes, threads, &again);
        if (!s && again > *limit) *limit = again;
    }
    return s;
}

const char *share_text(double seen, double limit, char out[64]) {
    if (limit <= 0)
        snprintf(out, 64, "that could not be measured");
    else if (seen > limit)
        snprintf(out, 64, "busy while that was measured, so no share");
    else
        snprintf(out, 64, "%.1f %%", seen / limit * 100);
    return out;
}
