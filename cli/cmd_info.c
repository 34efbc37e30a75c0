/* mhla info: what the library found on this machine and what it chose; or what a model is made of. */
#include <mhla/diffusion.h>
#include <mhla/lm.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

static int json, no_measure, tensors, presets;
static int64_t threads;

static const cli_option options[] = {
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {"threads", CLI_INT, &threads, "N", "measure with N threads; default: OpenMP's"},
    {"no-measure", CLI_FLAG, &no_measure, NULL, "do not measure peak and bandwidth"},
    {"tensors", CLI_FLAG, &tensors, NULL, "model: also print names and shapes of its parameters"},
    {"presets", CLI_FLAG, &presets, NULL, "the presets of all models, a line each"},
    {0},
};
static const cli_usage usage = {
    .verb = "info",
    .arguments = "[MODEL [KEY=VALUE]...]",
    .options = options,
    .text = "Prints the version, the kernels chosen for this CPU and why, threads, caches, and\n"
            "the peak of the machine: its rates of multiply-adds and of reading memory.\n"
            "MHLA_ISA in the environment forces the kernels.\n\n"
            "With MODEL, a folder, a run, a .gguf file or a preset (--presets lists them) changed by settings such\n"
            "as attention=softmax (or --attention softmax, as for train): its parameters and multiply-adds; of a\n"
            "language model also what a token reads and a sequence keeps; of an autoencoder the memory it takes.\n",
};

/* ---- A model ---- */

static const char *shape_text(char *text, size_t size, const mhla_tensor_info *t) {
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < t->axes && used < size; a++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", a ? "x" : "", (long long)t->shape[a]);
    return text;
}

static void print_tensors(const mhla_model *model) {
    char shape[64];
    mhla_tensor_info t = {.size = sizeof t};
    for (int i = 0; tensors && mhla_model_tensor(model, i, &t) == MHLA_OK; i++)
        printf("%s %s\n", t.name, shape_text(shape, sizeof shape, &t));
}

static void put_tensors(const mhla_model *model) {
    char shape[64];
    if (tensors) json_put_open("names", '{');
    mhla_tensor_info t = {.size = sizeof t};
    for (int i = 0; tensors && mhla_model_tensor(model, i, &t) == MHLA_OK; i++)
        json_put_text(t.name, shape_text(shape, sizeof shape, &t));
    if (tensors) json_put_close('}');
}

static void print_lm(const mhla_model *model, const mhla_model_info *info, const mhla_lm_info *lm) {
    char count[32], bytes[32];
    printf("model       %s\n", info->name);
    printf("attention   %s, %d layers of %d\n", lm->attention, lm->layers, lm->width);
    printf("vocabulary  %s tokens\n", text_count(count, sizeof count, lm->vocabulary));
    if (lm->context) printf("context     %s tokens\n", text_count(count, sizeof count, lm->context));
    printf("parameters  %s in %d tensors\n", text_count(count, sizeof count, info->parameters), info->tensors);
    text_bytes(bytes, sizeof bytes, (double)lm->weight_bytes);
    printf("weights     %s, %s read by a token\n", lm->storage, bytes);
    const int giga = lm->multiply_adds >= 100000000;
    printf("multiply-adds of a token\n");
    printf("  %8.3f %c  every product, mean over %s\n", (double)lm->multiply_adds / (giga ? 1e9 : 1e6),
           giga ? 'G' : 'M', lm->context ? "a text as long as the context" : "the first token");
    text_bytes(bytes, sizeof bytes, (double)lm->state_bytes);
    printf("state       %s of a sequence %s\n", bytes, lm->context ? "as long as the context" : "of one token");
    print_tensors(model);
}

static void print_lm_json(const mhla_model_info *info, const mhla_lm_info *lm) {
    json_put_text("model", info->name);
    json_put_text("attention", lm->attention);
    json_put_int("layers", lm->layers);
    json_put_int("width", lm->width);
    json_put_int("vocabulary", lm->vocabulary);
    json_put_int("context", lm->context);
    json_put_int("parameters", info->parameters);
    json_put_int("tensors", info->tensors);
    json_put_text("storage", lm->storage);
    json_put_int("weight_bytes", (int64_t)lm->weight_bytes);
    json_put_int("multiply_adds", lm->multiply_adds);
    json_put_int("state_bytes", (int64_t)lm->state_bytes);
}

static void print_model(const mhla_model *model, const mhla_model_info *info, const mhla_lm_info *lm) {
    char count[32];
    if (lm) {
        print_lm(model, info, lm);
        return;
    }
    printf("model       %s\n", info->name);
    const int denoiser = mhla_model_has(model, MHLA_ROLE_DENOISER);
    if (info->channels) printf("input       %d x ", info->channels);
    if (info->frames) printf("%d frames x ", info->frames);
    if (info->channels) printf("%d x %d", info->height, info->width);
    if (info->channels && info->classes) printf(", %d classes", info->classes);
    if (info->channels) printf("\n");
    if (info->text_width) printf("text        rows of %d\n", info->text_width);
    printf("tokens      %lld\n", (long long)info->tokens);
    printf("parameters  %s in %d tensors\n", text_count(count, sizeof count, info->parameters), info->tensors);
    if (info->trainable != info->parameters)
        printf("trainable   %s\n", text_count(count, sizeof count, info->trainable));
    printf("multiply-adds of %s\n", denoiser ? "one answer" : "an image");
    const int giga = info->multiply_adds >= 100000000;
    const double unit = giga ? 1e9 : 1e6;
    printf("  %8.3f %c  every product, at %lld tokens\n", (double)info->multiply_adds / unit, giga ? 'G' : 'M',
           (long long)info->tokens);
    printf("  %8.3f %c  as the paper counts: layers alone%s\n", (double)info->multiply_adds_paper / unit,
           giga ? 'G' : 'M', denoiser ? "" : ", without padding");
    if (info->note) printf("note        %s\n", info->note);
    print_tensors(model);
}

static mhla_status print_codec(mhla_model *model, const mhla_model_info *info) {
    char count[32], bytes[32];
    mhla_codec_info c = {.size = sizeof c};
    mhla_status status = mhla_codec_query(model, &c);
    if (status != MHLA_OK) return status;
    const mhla_coding usual = {.size = sizeof usual};
    if (json) {
        json_put_text("model", info->name);
        json_put_text("kind", info->kind);
        json_put_int("channels", c.channels);
        json_put_int("height", info->height);
        json_put_int("width", info->width);
        json_put_int("latents", c.latents);
        json_put_int("factor", c.factor);
        if (c.frames) json_put_int("frames", c.frames);
        json_put_real("scale", c.scale);
        json_put_real("shift", c.shift);
        json_put_int("parameters", info->parameters);
        json_put_int("tensors", info->tensors);
    } else {
        printf("model       %s\n", info->name);
        printf("images      %d x %d x %d\n", c.channels, info->height, info->width);
        printf("latents     %d x %d x %d", c.latents, info->height / c.factor, info->width / c.factor);
        if (c.frames)
            printf(", of clips 1 + n for 1 + %dn frames, each channel by its own mean and deviation\n", c.frames);
        else
            printf(", times %g\n", c.scale);
        printf("parameters  %s in %d tensors\n", text_count(count, sizeof count, info->parameters), info->tensors);
        printf("multiply-adds of an image, and memory\n");
    }
    for (int decode = 0; decode < 2; decode++) {
        mhla_coding coding = usual;
        if (!(decode ? c.decodes : c.encodes)) continue;
        status = mhla_coding_settle(model, &coding, decode);
        if (status != MHLA_OK) return status;
        if (json) {
            json_put_int(decode ? "decode_multiply_adds" : "encode_multiply_adds", coding.multiply_adds);
            json_put_int(decode ? "decode_bytes" : "encode_bytes", (int64_t)coding.peak);
            continue;
        }
        const int giga = coding.multiply_adds >= 100000000;
        printf("  %8.3f %c  to %s it, %s\n", (double)coding.multiply_adds / (giga ? 1e9 : 1e6), giga ? 'G' : 'M',
               decode ? "decode" : "encode", text_bytes(bytes, sizeof bytes, (double)coding.peak));
    }
    if (!json) print_tensors(model);
    return MHLA_OK;
}

static mhla_status print_encoder(const mhla_model *model, const mhla_model_info *info) {
    char count[32];
    mhla_text_encoder_info e = {.size = sizeof e};
    const mhla_status status = mhla_text_encoder_query(model, &e);
    if (status != MHLA_OK) return status;
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("model", info->name);
        json_put_text("kind", info->kind);
        json_put_int("vocabulary", e.vocabulary);
        json_put_int("width", e.width);
        json_put_int("parameters", info->parameters);
        json_put_int("tensors", info->tensors);
        json_put_int("tokens", info->tokens);
        json_put_int("multiply_adds", info->multiply_adds);
        put_tensors(model);
        json_put_close('}');
        return MHLA_OK;
    }
    printf("model       %s\n", info->name);
    printf("vocabulary  %s tokens\n", text_count(count, sizeof count, e.vocabulary));
    printf("rows        of %d numbers, one per token\n", e.width);
    printf("parameters  %s in %d tensors\n", text_count(count, sizeof count, info->parameters), info->tensors);
    printf("multiply-adds of a text of %lld tokens\n", (long long)info->tokens);
    const int giga = info->multiply_adds >= 100000000;
    printf("  %8.3f %c  every product\n", (double)info->multiply_adds / (giga ? 1e9 : 1e6), giga ? 'G' : 'M');
    print_tensors(model);
    return MHLA_OK;
}

static void print_images_json(const mhla_model_info *info) {
    json_put_text("model", info->name);
    json_put_text("kind", info->kind);
    json_put_int("channels", info->channels);
    if (info->frames) json_put_int("frames", info->frames);
    json_put_int("height", info->height);
    json_put_int("width", info->width);
    json_put_int("classes", info->classes);
    if (info->text_width) json_put_int("text_width", info->text_width);
    json_put_int("tokens", info->tokens);
    json_put_int("parameters", info->parameters);
    json_put_int("trainable", info->trainable);
    json_put_int("tensors", info->tensors);
    json_put_int("multiply_adds", info->multiply_adds);
    json_put_int("multiply_adds_paper", info->multiply_adds_paper);
    if (info->note) json_put_text("note", info->note);
}

static void print_model_json(const mhla_model *model, const mhla_model_info *info, const mhla_lm_info *lm) {
    json_put_open(NULL, '{');
    if (lm)
        print_lm_json(info, lm);
    else
        print_images_json(info);
    put_tensors(model);
    json_put_close('}');
}

static mhla_status print_codec_json(mhla_model *model, const mhla_model_info *info) {
    json_put_open(NULL, '{');
    const mhla_status status = print_codec(model, info);
    put_tensors(model);
    json_put_close('}');
    return status;
}

static int info_model(char **argv, int given) {
    mhla_model *model = NULL;
    mhla_model_info info = {.size = sizeof info};
    mhla_lm_info lm = {.size = sizeof lm};
    const int preset = cli_is_preset(argv[0]);
    if (!preset && given > 1) return cli_wrong(usage.verb, "\"%s\" is not expected: only presets are changed", argv[1]);
    mhla_status status = preset ? mhla_model_outline(&model, argv[0], (const char *const *)argv + 1, given - 1)
                                : mhla_model_open(&model, model_path(argv[0]));
    if (status == MHLA_OK) status = mhla_model_query(model, &info);
    const int text = mhla_model_has(model, MHLA_ROLE_DECODER);
    if (status == MHLA_OK && text) status = mhla_lm_query(model, &lm);
    const int codec = mhla_model_has(model, MHLA_ROLE_AUTOENCODER);
    if (status == MHLA_OK && codec) status = (json ? print_codec_json : print_codec)(model, &info);
    const int rows = !text && mhla_model_has(model, MHLA_ROLE_ENCODER);
    if (status == MHLA_OK && rows) status = print_encoder(model, &info);
    if (status == MHLA_OK && !codec && !rows) (json ? print_model_json : print_model)(model, &info, text ? &lm : NULL);
    mhla_model_free(model);
    return status == MHLA_OK ? CLI_OK : cli_failed(usage.verb, status);
}

static int list_presets(int given) {
    char name[64];
    if (given) return cli_wrong(usage.verb, "--presets takes no model");
    if (json) json_put_open(NULL, '[');
    for (int i = 0; mhla_model_preset(i, name) == MHLA_OK; i++)
        if (json)
            json_put_text(NULL, name);
        else
            puts(name);
    if (json) json_put_close(']');
    return CLI_OK;
}

/* ---- The machine ---- */

static void print_text(const mhla_cpu_info *info, int n, const double *peak, double bandwidth) {
    char l1[32], l2[32], l3[32];
    printf("mhla        %s\n", mhla_version());
    printf("kernels     %s (%s)\n", info->isa, info->why);
    printf("available   %s\n", info->available);
    printf("CPU         %s\n", info->model);
    printf("CPUs        %d\n", info->cpus);
    printf("threads     %d\n", n);
    text_bytes(l1, sizeof l1, (double)info->l1d);
    text_bytes(l2, sizeof l2, (double)info->l2);
    text_bytes(l3, sizeof l3, (double)info->l3);
    printf("caches      L1d %s, L2 %s, L3 %s\n", info->l1d ? l1 : "unknown", info->l2 ? l2 : "unknown",
           info->l3 ? l3 : "unknown");
    if (no_measure) return;
    printf("float32     %.0f GFLOP/s at most\n", peak[MHLA_F32]);
    if (peak[MHLA_BF16] > 0.0)
        printf("bfloat16    %.0f GFLOP/s at most\n", peak[MHLA_BF16]);
    else
        printf("bfloat16    not multiplied by this CPU: widened to float32\n");
    if (bandwidth > 0.0)
        printf("memory      %.1f GB/s read\n", bandwidth);
    else
        printf("memory      not measured: too little of it\n");
}

static void print_json(const mhla_cpu_info *info, int n, const double *peak, double bandwidth) {
    json_put_open(NULL, '{');
    json_put_text("version", mhla_version());
    json_put_text("isa", info->isa);
    json_put_text("why", info->why);
    json_put_text("available", info->available);
    json_put_text("model", info->model);
    json_put_int("cpus", info->cpus);
    json_put_int("threads", n);
    json_put_int("l1d", (int64_t)info->l1d);
    json_put_int("l2", (int64_t)info->l2);
    json_put_int("l3", (int64_t)info->l3);
    if (!no_measure) {
        json_put_real("peak_f32_gflops", peak[MHLA_F32]);
        json_put_real("peak_bf16_gflops", peak[MHLA_BF16]);
        json_put_real("read_gbytes_per_s", bandwidth);
    }
    json_put_close('}');
}

/* What mhla train takes as a flag, --key value, is a setting behind a model: key=value, in place. The new number of arguments. */
static int settings_from_flags(int argc, char **argv) {
    static char room[32][160];
    int n = 0, used = 0, model = 0;
    for (int i = 0; i < argc; i++) {
        const size_t length = strncmp(argv[i], "--", 2) == 0 ? strcspn(argv[i] + 2, "=") : 0;
        int own = length == 0 || !model || strcmp(argv[i], "--help") == 0;
        for (const cli_option *o = options; o->name && !own; o++)
            own = strlen(o->name) == length && strncmp(argv[i] + 2, o->name, length) == 0;
        const int split = !own && argv[i][2 + length] == '\0';
        if (own || (split && (i + 1 == argc || used == 32))) {
            model |= cli_is_preset(argv[i]);
            argv[n++] = argv[i];
        } else if (!split) {
            argv[n++] = argv[i] + 2;
        } else {
            snprintf(room[used], sizeof *room, "%s=%s", argv[i] + 2, argv[i + 1]);
            argv[n++] = room[used++];
            i++;
        }
    }
    return n;
}

int cmd_info(int argc, char **argv) {
    int given = 0;
    argc = settings_from_flags(argc, argv);
    const int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (presets) return list_presets(given);
    if (given) return info_model(argv, given);
    mhla_cpu_info info = {.size = sizeof info};
    mhla_status status = mhla_cpu_query(&info);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    mhla_context *context = NULL;
    if (threads > 1024) return cli_wrong(usage.verb, "--threads is %lld: expected 1 to 1024", (long long)threads);
    if (threads) {
        status = mhla_context_create(&context,
                                     &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = (int)threads});
        if (status != MHLA_OK) return cli_failed(usage.verb, status);
    }
    double peak[2] = {0}, bandwidth = 0.0;
    if (!no_measure) {
        peak[MHLA_F32] = peak_settled(MHLA_F32, context);
        peak[MHLA_BF16] = mhla_measure_peak(MHLA_BF16, context, 0.25);
        bandwidth = mhla_measure_bandwidth(context, 0.25);
    }
    (json ? print_json : print_text)(&info, mhla_context_threads(context), peak, bandwidth);
    mhla_context_free(context);
    return CLI_OK;
}
