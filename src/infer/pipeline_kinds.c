/* What is particular to each class of pipelines: a row. Everything else is the same for all of them. */
#include <math.h>
#include <stdlib.h>

#include "infer/pipeline.h"
#include "text/clean.h"

const char *const mhla_part_names[MHLA_PARTS] = {"text_encoder", "transformer", "vae", "tokenizer", "scheduler"};

/* ---- SANA ---- */

/* What SANA's text encoder is told in front of every prompt, word for word as in its training. */
static const char sana_instruction[] =
    "Given a user prompt, generate an 'Enhanced prompt' that provides detailed visual descriptions suitable for image "
    "generation. Evaluate the level of detail in the user prompt:\n"
    "- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, textures, and spatial "
    "relationships to create vivid and concrete scenes.\n"
    "- If the prompt is already detailed, refine and enhance the existing details slightly without overcomplicating.\n"
    "Here are examples of how to transform or refine prompts:\n"
    "- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat curled up in a round shape, sleeping "
    "peacefully on a warm sunny windowsill, surrounded by pots of blooming red flowers.\n"
    "- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, featuring glowing street "
    "lamps, a diverse crowd of people in colorful clothing, and a double-decker bus passing by towering glass "
    "skyscrapers.\n"
    "Please generate only the enhanced description for the prompt below and avoid including any additional commentary "
    "or evaluations:\n"
    "User Prompt: ";

/* Heights and widths of its training, in sixteenths of the side of a square. The nearest is that whose ratio, rounded to two digits, is. */
static const unsigned char sana_sizes[][2] = {
    {8, 32},  {8, 29},  {9, 28},  {9, 27},  {9, 26},  {10, 25}, {10, 24}, {11, 23}, {11, 22}, {11, 21}, {12, 21},
    {12, 20}, {13, 19}, {13, 18}, {14, 18}, {14, 17}, {15, 17}, {15, 16}, {16, 16}, {16, 15}, {17, 15}, {17, 14},
    {18, 14}, {18, 13}, {19, 13}, {20, 12}, {21, 12}, {22, 11}, {23, 11}, {24, 10}, {25, 10}, {27, 9},  {32, 8}};

static int sana_bin(int *height, int *width, int side) {
    const double ratio = (double)*height / *width;
    double best = INFINITY;
    if (side != 512 && side != 1024 && side != 2048 && side != 4096) return 0;
    for (size_t i = 0; i < sizeof sana_sizes / sizeof *sana_sizes; i++) {
        const double h = sana_sizes[i][0], w = sana_sizes[i][1], off = fabs(round(100.0 * h / w) / 100.0 - ratio);
        if (off >= best) continue;
        best = off;
        *height = (int)h * side / 16;
        *width = (int)w * side / 16;
    }
    return 1;
}

/* ---- Wan ---- */

/* What clips shall not be like, as its authors have it. */
static const char wan_negative[] =
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，"
    "丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，静止不动的画"
    "面，"
    "杂乱的背景，三条腿，背景人很多，倒着走";

static const mhla_pipeline_kind kinds[] = {
    {.name = "SanaPipeline",
     .architecture = "sana",
     .instruction = sana_instruction,
     .negative = "",
     .rows = 300,
     .clean = mhla_clean_lower,
     .schedule = {"dpm++", 3.0},
     .steps = 20,
     .guidance = 4.5,
     .bin = sana_bin},
    {.name = "WanPipeline",
     .architecture = "wan",
     .instruction = "",
     .negative = wan_negative,
     .rows = 512,
     .clean = mhla_clean_repair,
     .schedule = {"unipc", 3.0},
     .steps = 50,
     .guidance = 5.0,
     .seconds = 1.0 / 16.0,
     .files = {"models_t5_umt5-xxl-enc-bf16.pth", "", "Wan2.1_VAE.pth", "google/umt5-xxl"}},
};

const mhla_pipeline_kind *mhla_pipeline_kind_at(int i) {
    return i >= 0 && i < (int)(sizeof kinds / sizeof *kinds) ? &kinds[i] : NULL;
}
