/* The smallest whole program on libsheaf: a GGUF file, two devices that act as one, a prompt, a reply.
 *
 *     cc first.c $(pkg-config --cflags --libs libsheaf) -o first && ./first model.gguf "Once upon a time"
 */
#include <sheaf.h>
#include <stdio.h>
#include <string.h>

/* Runs the prompt, then draws and prints up to `n` tokens. */
static sheaf_status reply(sheaf_model *model, const char *prompt, int n) {
    const sheaf_tokenizer *tok = sheaf_model_tokenizer(model);
    sheaf_context_options co = sheaf_context_defaults();
    sheaf_sampler_options so = sheaf_sampler_defaults();
    sheaf_context *ctx = NULL;
    sheaf_sampler *sampler = NULL;
    sheaf_ids ids = {0};
    so.seed = 1;

    sheaf_status s = sheaf_context_new(model, &co, &ctx);
    if (!s) s = sheaf_sampler_new(&so, sheaf_model_hparams(model)->n_tokens, &sampler);
    if (!s) s = sheaf_tokenize(tok, prompt, strlen(prompt), SHEAF_TOKENIZE_ADD_SPECIAL, &ids);

    sheaf_batch batch = {.n = (int32_t)ids.n, .token = ids.v};
    for (int i = 0; i < n && !s; i++) {
        int32_t id;
        s = sheaf_decode(ctx, &batch); /* the prompt first, then one token at a time */
        if (!s) s = sheaf_sample(sampler, sheaf_logits(ctx, 0), &id);
        if (s || sheaf_token_is_end(tok, id)) break;
        sheaf_str piece = sheaf_token_piece(tok, id, false);
        fwrite(piece.s, 1, piece.n, stdout);
        batch = (sheaf_batch){.n = 1, .token = &id};
    }
    putchar('\n');
    sheaf_ids_free(&ids);
    sheaf_sampler_free(sampler);
    sheaf_context_free(ctx);
    return s;
}

int main(int argc, char **argv) {
    sheaf_registry *registry = NULL;
    sheaf_device *devices[8];
    sheaf_open_options oo = {.n_parts = 1};
    sheaf_model *model = NULL;
    int n_devices = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.gguf PROMPT\n", argv[0]);
        return 2;
    }
    sheaf_status s = sheaf_registry_new(&registry);
    if (!s) s = sheaf_devices_open(registry, "cpu/2", &oo, devices, 8, &n_devices);
    sheaf_model_options mo = {
        .registry = registry, .devices = devices, .n_devices = n_devices, .devices_name = "cpu/2"};
    if (!s) s = sheaf_model_load(argv[1], &mo, &model);
    if (!s) s = reply(model, argv[2], 64);
    if (s) fprintf(stderr, "%s\n", sheaf_error());
    sheaf_model_free(model);
    sheaf_registry_free(registry);
    return sheaf_status_exit_code(s);
}
