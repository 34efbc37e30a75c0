/* mhla measure: how near generated pictures are to real ones, by the features that a network sees in them; how well they fit their texts. */
#include <math.h>
#include <mhla/diffusion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const char *features, *split, *resize, *dump, *vae, *clip, *tokenizer;
static int64_t limit, neighbours, memory;
static int json;
static cli_grid size;

static const cli_option options[] = {
    {"features", CLI_TEXT, &features, "FILE",
     "network of the features: Inception's weights (inception: those of mhla data\n"
     "                         inception), or a model or run of an image classifier"},
    {"split", CLI_TEXT, &split, "SPLIT", "of datasets: test (default) or train"},
    {"limit", CLI_INT, &limit, "N", "at most N images of each, evenly spread"},
    {"neighbours", CLI_INT, &neighbours, "K", "neighbours for precision and recall; default: 3"},
    {"size", CLI_GRID, &size, "WxH", "crop images to their centre, and pad smaller ones with black; default: neither"},
    {"resize", CLI_TEXT, &resize, "HOW",
     "resize to Inception's size like pytorch-fid (torch, default) or the original code (tf1)"},
    {"vae", CLI_TEXT, &vae, "MODEL", "the autoencoder that decodes a .npy of latents"},
    {"memory", CLI_BYTES, &memory, "BYTES",
     "--vae: decode in overlapping tiles that need at most this much, for example 2G"},
    {"dump", CLI_TEXT, &dump, "DIR",
     "write the features of both as .npy, and the class probabilities of the generated images"},
    {"clip", CLI_TEXT, &clip, "MODEL",
     "the CLIP score of IMAGES and PROMPTS: OpenAI's or open_clip's weights, or a folder from Hugging Face"},
    {"tokenizer", CLI_TEXT, &tokenizer, "PATH", "--clip: its tokenizer; default: beside the weights"},
    {"json", CLI_FLAG, &json, NULL, "one JSON document instead of text"},
    {0},
};
static const cli_usage usage = {
    .verb = "measure",
    .arguments = "REAL GENERATED | --clip MODEL IMAGES PROMPTS",
    .options = options,
    .text = "Compares two sets of images: Fréchet distance, Inception score of the second, precision and recall.\n"
            "REAL and GENERATED are datasets (\"fashion-mnist\"), folders with images or with a folder of images\n"
            "per class, or .npy files of uint8 [N,H,W] or [N,H,W,3], or with --vae of latents, float32 [N,C,H,W].\n"
            "\n"
            "With Inception's features the distance is FID, and sFID, the distance of spatial features, is\n"
            "printed as well. With those of a classifier it is not FID, and may only be compared with others by the\n"
            "same classifier. If GENERATED has a folder for each class of the classifier, the share of images that\n"
            "it assigns to the intended class is printed as well.\n"
            "\n"
            "With --clip: the CLIP score, the mean of 100 times the cosine of each image and its prompt. PROMPTS is a\n"
            "file with a line of text for each image, in the order of the names of the image files.\n",
};

static void show(void *user, int64_t done, int64_t all) {
    static double begin, shown;
    const double now = now_seconds();
    (void)user;
    if (begin == 0.0) begin = now;
    if (now - shown < 0.2 && done < all) return;
    shown = now;
    char left[32];
    fprintf(stderr, "\r%lld of %lld images, %s left \033[K", (long long)done, (long long)all,
            text_time(left, sizeof left, (now - begin) * (double)(all - done) / (double)done));
    if (done == all) fprintf(stderr, "\rcomparing ...\033[K");
}

static void print_share(const char *name, double value, const char *what) {
    if (isnan(value))
        printf("%-11s -         too few images\n", name);
    else
        printf("%-11s %-9.4f %s\n", name, value, what);
}

static void print_text(const mhla_measures *r) {
    char real[32], made[32];
    printf("features    %s\n", r->features);
    printf("images      %s real, %s generated\n", text_count(real, sizeof real, r->real),
           text_count(made, sizeof made, r->generated));
    if (r->inception)
        printf("FID         %.4f\nsFID        %-9.4f of spatial features\n", r->distance, r->spatial_distance);
    else
        printf("distance    %-9.4f Fréchet distance of this classifier's features; not FID\n", r->distance);
    if (isnan(r->score))
        printf("score       -         the file has no classes, which the Inception score is made of\n");
    else
        printf("score       %-9.4f +- %.4f%s\n", r->score, r->score_deviation,
               r->inception ? "" : "; by this classifier's classes, not the Inception score");
    print_share("precision", r->precision, "of the generated are near a real one");
    print_share("recall", r->recall, "of the real are near a generated one");
    if (r->labelled)
        printf("named       %-9.4f of the generated are assigned the class of their folder\n", r->accuracy);
}

static void print_json(const mhla_measures *r) {
    json_put_open(NULL, '{');
    json_put_text("features", r->features);
    json_put_bool("inception", r->inception);
    json_put_int("dims", r->dims);
    json_put_int("real", r->real);
    json_put_int("generated", r->generated);
    json_put_real(r->inception ? "fid" : "frechet_distance", r->distance);
    json_put_real("sfid", r->spatial_distance);
    json_put_real("score", r->score);
    json_put_real("score_deviation", r->score_deviation);
    json_put_real("precision", r->precision);
    json_put_real("recall", r->recall);
    json_put_real("accuracy", r->accuracy);
    json_put_close('}');
}

/* ---- The CLIP score ---- */

static int measure_clip(const char *images, const char *prompts) {
    if (features || split || resize || dump || vae || memory || neighbours || size.axes)
        return cli_wrong(usage.verb, "--clip takes --tokenizer, --limit and --json only");
    char text[32];
    mhla_clip_scores r = {.size = sizeof r};
    const mhla_clip_desc desc = {.size = sizeof desc,
                                 .model = model_path(clip),
                                 .images = images,
                                 .prompts = prompts,
                                 .tokenizer = tokenizer,
                                 .limit = limit,
                                 .progress = isatty(STDERR_FILENO) ? show : NULL};
    const mhla_status status = mhla_clip_score(&r, &desc);
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("model", r.model);
        json_put_int("pairs", r.pairs);
        json_put_int("cut", r.cut);
        json_put_int("side", r.side);
        json_put_real("clip_score", r.score);
        json_put_real("standard_error", r.error);
        json_put_close('}');
        return CLI_OK;
    }
    printf("model       %s, %d x %d pixels\n", r.model, r.side, r.side);
    printf("pairs       %s of an image and a prompt\n", text_count(text, sizeof text, r.pairs));
    printf("CLIP score  %.4f", r.score);
    if (!isnan(r.error)) printf(" +- %.4f", r.error);
    printf("\n");
    if (r.cut)
        printf("cut         %s prompts are longer than the model's texts\n", text_count(text, sizeof text, r.cut));
    return CLI_OK;
}

int cmd_measure(int argc, char **argv) {
    int given = 0;
    const int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given != 2)
        return cli_wrong(usage.verb, "%s are expected, %d given", clip ? "IMAGES and PROMPTS" : "REAL and GENERATED",
                         given);
    if (clip) return measure_clip(argv[0], argv[1]);
    if (tokenizer) return cli_wrong(usage.verb, "--tokenizer is for --clip");
    if (features == NULL) return cli_wrong(usage.verb, "--features is missing");
    if (neighbours > 64) return cli_wrong(usage.verb, "--neighbours is %lld: expected 1 to 64", (long long)neighbours);
    if (split && strcmp(split, "test") != 0 && strcmp(split, "train") != 0)
        return cli_wrong(usage.verb, "--split is \"%s\": expected test or train", split);
    if (resize && strcmp(resize, "torch") != 0 && strcmp(resize, "tf1") != 0)
        return cli_wrong(usage.verb, "--resize is \"%s\": expected torch or tf1", resize);
    if (memory && !vae) return cli_wrong(usage.verb, "--memory is for --vae");
    if (size.axes > 2) return cli_wrong(usage.verb, "--size: expected WxH");
    mhla_measures r = {.size = sizeof r};
    char *const decoder = vae ? strdup(model_path(vae)) : NULL; /* model_path keeps one name */
    if (vae && decoder == NULL) return cli_failed(usage.verb, MHLA_ENOMEM);
    const mhla_measure_desc desc = {.size = sizeof desc,
                                    .real = argv[0],
                                    .generated = argv[1],
                                    .split = split,
                                    .features = model_path(features),
                                    .limit = limit,
                                    .neighbours = (int)neighbours,
                                    .progress = isatty(STDERR_FILENO) ? show : NULL,
                                    .resize = resize,
                                    .dump = dump,
                                    .vae = decoder,
                                    .memory = (size_t)memory,
                                    .width = size.size[0],
                                    .height = size.size[size.axes == 2]};
    const mhla_status status = mhla_measure(&r, &desc);
    free(decoder);
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    (json ? print_json : print_text)(&r);
    const int64_t few = r.real < r.generated ? r.real : r.generated;
    if (few <= r.dims)
        fprintf(stderr,
                "mhla measure: %lld images are not more than the %d features: the covariance is singular, and the "
                "distance says little\n",
                (long long)few, r.dims);
    return CLI_OK;
}
