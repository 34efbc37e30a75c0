/* The experiments, a row each: what the paper claims, its figures, the arms, what is measured, and the claims that are judged.
 * Figures of the paper stand here only where they were read in it. To add one, add a row; a new way of measuring is a
 * function `make`. */
#include "lab/lab.h"

/* ---- Small DeiTs at 256 tokens, in the surroundings of the paper's comparison: a convolution of 3 x 3 that begins each block (CPE),
 * no other that is not the attention's own. Four heads of 16: linear attention's rank is 16 at most. Each arm has the rate that
 * the search found for it. ---- */

#define DEIT                                                                                                           \
    "model.model=deit_nano model.patch=2 model.heads=4 model.blocks=4,4 model.mix=paper model.cpe=3 model.lepe=0 "     \
    "model.crop=1 train.batch=32 train.steps=600 train.warmup_steps=60 train.clip=1 augment.flip=0.5 eval.epochs=0 "   \
    "checkpoint.minutes=0.5 lab.rates=1e-3,2e-3,4e-3 search.train.steps=150 search.train.warmup_steps=15 "             \
    "search.eval.limit=16 search.log.steps=1"
#define CLOTHES " model.mean=0.286 model.deviation=0.353"
#define CIFAR                                                                                                          \
    " model.image=32,32 model.channels=3 model.padding=0,0 model.mean=0.4914,0.4822,0.4465 "                           \
    "model.deviation=0.2470,0.2435,0.2616 augment.crop=pad augment.pad=4"
#define DEIT_QUICK                                                                                                     \
    "train.steps=40 train.warmup_steps=4 eval.limit=1000 lab.rates=1e-3,4e-3 search.train.steps=8 "                    \
    "search.train.warmup_steps=2"
/* 1,024 tokens and twice the updates: a night. */
#define DEIT_LONG "model.patch=1 train.steps=1200 train.warmup_steps=120"
#define DEIT_GATE                                                                                                      \
    .gate = "accuracy", .gate_least = 0.15,                                                                            \
    .gate_text =                                                                                                       \
        "An arm counts as trained if it gets more than 15 % of the test images right, where guessing gives 10 %; a "   \
        "claim about one that is not trained is undecided."

#define ACCURACY                                                                                                       \
    { "accuracy", "accuracy, %", 100.0, 2 }
#define LOSS                                                                                                           \
    { "loss", "test loss", 1.0, 4 }

/* Where the figures of `length` have points: all of them, and those of a quick run. */
#define LENGTHS                                                                                                        \
    {64, 256, 1024, 4096}, { 64, 256 }

/* The seven, with the paper's top-1 of DeiT-T and DeiT-S. */
/* clang-format off */
#define SEVEN {                                                                                                        \
    {"mhla", "MHLA", "model.attention=mhla", {75.8, 81.0}},                                                            \
    {"linear", "linear", "model.attention=linear", {69.8, 77.6}},                                                      \
    {"softmax", "softmax", "model.attention=softmax", {72.2, 79.8}},                                                   \
    {"focused", "Focused LA", "model.attention=focused", {74.1, 0}},                                                   \
    {"inline", "InLine", "model.attention=inline", {74.5, 0}},                                                         \
    {"mala", "MALA", "model.attention=mala", {75.1, 80.3}},                                                            \
    {"rala", "RALA", "model.attention=rala", {0, 80.4}}}
/* clang-format on */

/* Language: windows of 2,048 tokens, as many tokens an update as eight of 512; where positions are measured beyond them. */
#define LONGER " train.context=2048 train.batch=2"
#define FAR_AWAY                                                                                                       \
    {1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192}, { 1024, 2048, 3072, 4096 }

/* Clips: begun as the trained softmax model, with the settings that begin with "lab.adapted.". */
#define ADAPTED " lab.adapted=1 lab.rates="

/* Four of them, each with and without the convolution that can make up for what attention lacks. */
/* clang-format off */
#define BARE " model.cpe=0"
#define FOUR {                                                                                                         \
    {"mhla", "MHLA", "model.attention=mhla", {75.8, 81.0}},                                                            \
    {"linear", "linear", "model.attention=linear", {69.8, 77.6}},                                                      \
    {"softmax", "softmax", "model.attention=softmax", {72.2, 79.8}},                                                   \
    {"mala", "MALA", "model.attention=mala", {75.1, 80.3}},                                                            \
    {"mhla-bare", "MHLA, no convolution", "model.attention=mhla" BARE, {0}},                                           \
    {"linear-bare", "linear, no convolution", "model.attention=linear" BARE, {0}},                                     \
    {"softmax-bare", "softmax, no convolution", "model.attention=softmax" BARE, {0}},                                  \
    {"mala-bare", "MALA, no convolution", "model.attention=mala" BARE, {0}}}
#define FOUR_CLAIMS {                                                                                                  \
    {"MHLA does better than linear attention", "accuracy", "mhla", "linear", 0, 0},                                    \
    {"... than softmax", "accuracy", "mhla", "softmax", 0, 0},                                                         \
    {"... than MALA", "accuracy", "mhla", "mala", 0, 0},                                                               \
    {"softmax does better than linear attention", "accuracy", "softmax", "linear", 0, 0},                              \
    {"without convolutions MHLA does better than linear attention", "accuracy", "mhla-bare", "linear-bare", 0, 0},     \
    {"... than softmax", "accuracy", "mhla-bare", "softmax-bare", 0, 0}}
/* clang-format on */
#define DEIT_CLAIM                                                                                                     \
    "MHLA classifies better than every other attention, softmax included, and softmax better than linear attention."

const mhla_experiment mhla_experiments[] = {
    {
        .info = {.name = "collapse",
                 .title = "Collapse: rank and entropy of trained attention (Fig. 3b)",
                 .claim = "MHLA has a higher rank and a lower entropy than every linear attention before it.",
                 .paper = "Fig. 3b, means over 500 samples",
                 .known =
                     "with four heads of 16 and 256 tokens the rank is at most 16 for linear, Focused LA and RALA, "
                     "17 for InLine and MALA, 256 for MHLA with 16 blocks and for softmax. Models that the experiment "
                     "deit has trained are reused.",
                 .data = "fashion-mnist",
                 .minutes = 50,
                 .quick = 4,
                 .labels = 1},
        .settings = DEIT CLOTHES " lab.samples=200 lab.ranked=16",
        .quick_settings = DEIT_QUICK " lab.samples=20 lab.ranked=2",
        .paper_note = "Fig. 3b is a chart; its figures are not available here. InLine, MALA and RALA can have negative "
                      "weights. These count as 0 in the entropy; the table states their share of the weight.",
        .arms = SEVEN,
        .columns = {{"rank", "rank", 1.0, 1},
                    {"entropy", "entropy, nats", 1.0, 3},
                    {"effective", "effective rank", 1.0, 1},
                    {"bound", "rank at most", 1.0, 0},
                    {"clipped", "negative weight, %", 100.0, 1},
                    ACCURACY},
        .claims = {{"MHLA has a higher rank than linear attention", "rank", "mhla", "linear", 0, 0},
                   {"... than Focused LA", "rank", "mhla", "focused", 0, 0},
                   {"... than InLine", "rank", "mhla", "inline", 0, 0},
                   {"... than MALA", "rank", "mhla", "mala", 0, 0},
                   {"... than RALA", "rank", "mhla", "rala", 0, 0},
                   {"MHLA has a lower entropy than linear attention", "entropy", "mhla", "linear", 1, 0},
                   {"... than Focused LA", "entropy", "mhla", "focused", 1, 0},
                   {"... than InLine", "entropy", "mhla", "inline", 1, 0},
                   {"... than MALA", "entropy", "mhla", "mala", 1, 0},
                   {"... than RALA", "entropy", "mhla", "rala", 1, 0}},
        DEIT_GATE,
        .dots = 3,
        .make = mhla_part_collapse,
    },
    {
        .info = {.name = "length",
                 .title = "Length: the same images as 64, 256, 1,024 and 4,096 tokens",
                 .claim = "with more tokens linear attention falls behind, and MHLA does not: its rank grows with the "
                          "number of blocks.",
                 .paper = "Sec. 3, global context collapse; the paper shows it at one length, Fig. 3",
                 .known = "with two heads of 32 the rank is at most 32 at any length for linear attention, and at most "
                          "512 for MHLA with 16 blocks. One arm starts with a uniform mixing matrix: it separates the "
                          "gain of several summaries from the gain of a local start. Two arms have no convolution "
                          "(LePE), because a convolution can compensate for weak attention. The models have seen few "
                          "images, so this compares the beginning of training.",
                 .data = "fashion-mnist",
                 .minutes = 60,
                 .quick = 4,
                 .labels = 1},
        .settings =
            "model.model=deit_nano model.blocks=4,4 model.mix=paper model.lepe=5 "
            "model.mean=0.286 model.deviation=0.353 model.crop=1 train.batch=16 train.steps=200 "
            "train.warmup_steps=20 train.weight_decay=0.05 train.smoothing=0.1 train.drop_path=0.05 train.clip=1 "
            "augment.crop=random augment.scale=0.7,1 augment.flip=0.5 eval.steps=70 eval.limit=1000 "
            "checkpoint.minutes=0.5 "
            "lab.tokens=64,256,1024 lab.once=4096 lab.once_seed=3 lab.samples=16 lab.rates=1e-3,2e-3,4e-3,8e-3 "
            "search.model.image=28,28 search.model.padding=2,2 search.model.patch=2 search.train.steps=100 "
            "search.train.warmup_steps=10 search.eval.steps=0 "
            "search.eval.epochs=0 search.eval.limit=16 search.log.steps=1",
        .quick_settings = "train.steps=20 train.warmup_steps=4 eval.steps=10 eval.limit=500 lab.tokens=64,256 "
                          "lab.once= lab.samples=8 lab.rates=1e-3,4e-3 search.train.steps=8 "
                          "search.train.warmup_steps=2",
        .paper_note = "The paper has no table of this; its Fig. 3 shows rank and entropy at one length. At 4,096 "
                      "tokens there is one seed, the third, and softmax and the arms without convolution are not "
                      "trained. The early measures are taken after 70 of the 200 updates. Images of 28 x 28 pixels are "
                      "padded by 2 on each side; for 4,096 tokens they are enlarged.",
        .arms = {{"mhla", "MHLA", "model.attention=mhla", {0}},
                 {"mhla-uniform", "MHLA, uniform start", "model.attention=mhla model.mix=uniform", {0}},
                 {"linear", "linear", "model.attention=linear", {0}},
                 {"softmax", "softmax", "model.attention=softmax lab.once=", {0}},
                 {"mhla-bare", "MHLA, no convolution", "model.attention=mhla model.lepe=0 lab.once=", {0}},
                 {"linear-bare", "linear, no convolution", "model.attention=linear model.lepe=0 lab.once=", {0}}},
        .columns = {{"accuracy_64", "accuracy at 64 tokens, %", 100.0, 1},
                    {"accuracy_256", "at 256", 100.0, 1},
                    {"accuracy_1024", "at 1,024", 100.0, 1},
                    {"accuracy_4096", "at 4,096 (one seed)", 100.0, 1},
                    {"early_1024", "early, at 1,024", 100.0, 1},
                    {"loss_1024", "test loss at 1,024", 1.0, 3},
                    {"rank_64", "rank at 64", 1.0, 1},
                    {"rank_256", "at 256", 1.0, 1},
                    {"rank_1024", "at 1,024", 1.0, 1},
                    {"rank_4096", "at 4,096 (one seed)", 1.0, 1},
                    {"effective_1024", "effective rank at 1,024", 1.0, 1},
                    {"entropy_1024", "entropy at 1,024, nats", 1.0, 2}},
        .claims = {{"at 1,024 tokens MHLA does better than linear attention", "accuracy_1024", "mhla", "linear", 0, 0},
                   {"... also where it starts uniform", "accuracy_1024", "mhla-uniform", "linear", 0, 0},
                   {"... also without the convolution", "accuracy_1024", "mhla-bare", "linear-bare", 0, 0},
                   {"at 1,024 tokens MHLA has a higher rank than linear attention", "rank_1024", "mhla", "linear", 0,
                    0},
                   {"... and a lower entropy", "entropy_1024", "mhla", "linear", 1, 0}},
        .lines = {{"accuracy after all updates", "tokens", "%", "accuracy_", LENGTHS, 1, 0, 100.0},
                  {"accuracy after a third of the updates", "tokens", "%", "early_", LENGTHS, 1, 0, 100.0},
                  {"test loss", "tokens", "", "loss_", LENGTHS, 1, 0, 0},
                  {"rank of attention", "tokens", "", "rank_", LENGTHS, 1, 1, 0},
                  {"effective rank", "tokens", "", "effective_", LENGTHS, 1, 1, 0},
                  {"entropy of attention", "tokens", "nats", "entropy_", LENGTHS, 1, 0, 0}},
        .make = mhla_part_length,
    },
    {
        .info =
            {.name = "deit",
             .title = "Four attentions in the same surroundings, with and without convolutions (Tab. 2a)",
             .claim = DEIT_CLAIM,
             .paper = "Tab. 2a: DeiT-T and DeiT-S on ImageNet-1K, 224 px, 300 epochs, top-1",
             .known =
                 "256 tokens. In the paper MALA is the best of the other attentions. Attentions differ much less on "
                 "small images of ten kinds of clothes than on ImageNet, and these models have seen 19,200 "
                 "images. --long: 1,024 tokens.",
             .data = "fashion-mnist",
             .minutes = 60,
             .quick = 4,
             .labels = 1,
             .seeds = 5,
             .hours = 9},
        .settings = DEIT CLOTHES,
        .quick_settings = DEIT_QUICK,
        .long_settings = DEIT_LONG,
        .paper_titles = {"paper: DeiT-T, top-1 %", "paper: DeiT-S, top-1 %"},
        .paper_digits = 1,
        .arms = FOUR,
        .columns = {ACCURACY, LOSS},
        .claims = FOUR_CLAIMS,
        DEIT_GATE,
        .dots = 1,
        .make = mhla_part_images,
    },
    {
        .info = {.name = "deit-cifar",
                 .title = "The same four attentions on colour images (Tab. 2a)",
                 .claim = DEIT_CLAIM,
                 .paper = "Tab. 2a: DeiT-T and DeiT-S on ImageNet-1K, 224 px, 300 epochs, top-1",
                 .known = "256 tokens. Of the 10,000 test images of CIFAR-10, 8,000 are for training and 2,000 for the "
                          "test, so the figures cannot be compared with published ones. --long: 1,024 tokens.",
                 .data = "cifar10-test",
                 .minutes = 55,
                 .quick = 4,
                 .labels = 1,
                 .seeds = 5,
                 .hours = 8},
        .settings = DEIT CIFAR,
        .quick_settings = DEIT_QUICK,
        .long_settings = DEIT_LONG,
        .paper_titles = {"paper: DeiT-T, top-1 %", "paper: DeiT-S, top-1 %"},
        .paper_digits = 1,
        .arms = FOUR,
        .columns = {ACCURACY, LOSS},
        .claims = FOUR_CLAIMS,
        DEIT_GATE,
        .dots = 1,
        .make = mhla_part_images,
    },
    {
        .info = {.name = "vlt",
                 .title = "VLT with four linear attentions on small colour images (Tab. 2b)",
                 .claim = "in the backbone of RALA, MHLA classifies better than MALA, and MALA better than RALA.",
                 .paper = "Tab. 2b: VLT-T and VLT-S on ImageNet-1K, 224 px, 300 epochs, top-1",
                 .known = "vlt_nano has 64 tokens in its first stage and 16 in its second; later stages have softmax "
                          "attention. Its convolutions see most of an image of 32 pixels. Linear attention is MHLA of "
                          "one block. Of the 10,000 test images of CIFAR-10, 8,000 are for training and 2,000 for the "
                          "test, so the figures cannot be compared with published ones.",
                 .data = "cifar10-test",
                 .minutes = 45,
                 .quick = 3,
                 .labels = 1},
        .settings = "model.model=vlt_nano model.mean=0.4914,0.4822,0.4465 model.deviation=0.2470,0.2435,0.2616 "
                    "train.batch=64 train.steps=3750 train.warmup_steps=125 train.weight_decay=0.05 "
                    "train.smoothing=0.1 train.drop_path=0.05 train.clip=1 augment.crop=pad augment.pad=4 "
                    "augment.flip=0.5 eval.epochs=0 checkpoint.minutes=0.5 lab.rates=1e-3,2e-3,4e-3 "
                    "search.train.steps=150 search.train.warmup_steps=15 search.eval.limit=16 "
                    "search.log.steps=1",
        .quick_settings = "train.steps=40 train.warmup_steps=4 eval.limit=1000 lab.rates=1e-3,4e-3 "
                          "search.train.steps=8 search.train.warmup_steps=2",
        .paper_titles = {"paper: VLT-T, top-1 %", "paper: VLT-S, top-1 %"},
        .paper_digits = 1,
        .arms = {{"mhla", "MHLA", "model.attention=mhla", {82.6, 84.6}},
                 {"linear", "linear", "model.attention=mhla model.blocks=1,1,1,1", {0}},
                 {"mala", "MALA", "model.attention=mala", {82.4, 84.3}},
                 {"rala", "RALA", "model.attention=rala", {82.3, 0}}},
        .columns = {ACCURACY, LOSS},
        .claims = {{"MHLA does better than linear attention", "accuracy", "mhla", "linear", 0, 0},
                   {"... than MALA", "accuracy", "mhla", "mala", 0, 0},
                   {"... than RALA", "accuracy", "mhla", "rala", 0, 0},
                   {"MHLA does better than guessing one of the ten classes", "accuracy", "mhla", NULL, 0, 0.1}},
        DEIT_GATE,
        .dots = 1,
        .make = mhla_part_images,
    },
    {
        .info = {.name = "mixing",
                 .title = "The mixing matrix: initial values, learned or frozen (Tab. 7a)",
                 .claim = "a mixing matrix that is initialized by the distances of blocks and learned does better than "
                          "one that is initialized uniformly, and better than one that is not trained.",
                 .paper = "Tab. 7a: DeiT-T on ImageNet-1K, 224 px, 300 epochs, top-1",
                 .known = "256 tokens in 16 blocks; locality helps little on small images.",
                 .data = "fashion-mnist",
                 .minutes = 45,
                 .quick = 3,
                 .labels = 1,
                 .seeds = 5},
        .settings = DEIT CLOTHES " model.attention=mhla",
        .quick_settings = DEIT_QUICK,
        .paper_titles = {"paper: DeiT-T, top-1 %"},
        .paper_digits = 1,
        .arms = {{"paper", "distances, learned", "model.mix=paper", {75.8}},
                 {"paper-frozen", "distances, frozen", "model.mix=paper train.freeze=*piece_attn*", {75.1}},
                 {"uniform", "uniform, learned", "model.mix=uniform", {75.4}},
                 {"uniform-frozen",
                  "uniform, frozen: linear attention",
                  "model.mix=uniform train.freeze=*piece_attn*",
                  {0}},
                 {"cos", "cosine, learned", "model.mix=cos", {0}},
                 {"local", "neighbours, learned", "model.mix=local", {0}}},
        .columns = {ACCURACY, LOSS},
        .claims = {{"initial values by distance do better than uniform ones, both learned", "accuracy", "paper",
                    "uniform", 0, 0},
                   {"learned does better than frozen, from distances", "accuracy", "paper", "paper-frozen", 0, 0},
                   {"learned does better than frozen, from uniform", "accuracy", "uniform", "uniform-frozen", 0, 0}},
        DEIT_GATE,
        .dots = 1,
        .make = mhla_part_images,
    },
    {
        .info = {.name = "heads",
                 .title = "The number of blocks, the token-level heads (Tab. 7b)",
                 .claim = "more blocks do better than one, which is linear attention.",
                 .paper = "Tab. 7b: DiT-S/2 on ImageNet-1K, 512 px (1,024 tokens), 400,000 updates",
                 .known = "M = 1 is linear attention; with 256 tokens the rule M * M <= T allows at most 16 blocks.",
                 .data = "fashion-mnist",
                 .minutes = 30,
                 .quick = 2,
                 .labels = 1,
                 .seeds = 5},
        .settings = DEIT CLOTHES " model.attention=mhla",
        .quick_settings = DEIT_QUICK,
        .paper_titles = {"paper: DiT-S/2, FID"},
        .paper_digits = 2,
        .arms = {{"m1", "M = 1", "model.blocks=1,1", {0}},
                 {"m4", "M = 4 (2 x 2)", "model.blocks=2,2", {79.56}},
                 {"m16", "M = 16 (4 x 4)", "model.blocks=4,4", {78.63}},
                 {"m64", "M = 64 (8 x 8)", "model.blocks=8,8", {79.50}}},
        .columns = {ACCURACY, LOSS},
        .claims = {{"4 blocks do better than one", "accuracy", "m4", "m1", 0, 0},
                   {"16 blocks do better than one", "accuracy", "m16", "m1", 0, 0},
                   {"64 blocks do better than one", "accuracy", "m64", "m1", 0, 0}},
        DEIT_GATE,
        .dots = 1,
        .make = mhla_part_images,
    },
    {
        .info = {.name = "modules",
                 .title = "CPE and gate around MHLA, in a DiT (Tab. 12)",
                 .claim =
                     "a convolution of the tokens (CPE) and an output gate each make MHLA better at generating images.",
                 .paper = "Tab. 12: DiT-S/2 on ImageNet-1K, 256 px, 400,000 updates; linear attention: FID 89.7",
                 .known = "measured by the loss on held-out images, not by FID: models this small generate images that "
                          "are too poor for FID.",
                 .data = "fashion-mnist",
                 .minutes = 15,
                 .quick = 3},
        .settings =
            "task=diffusion model.model=dit_nano model.attention=mhla model.process=flow model.image=32,32 "
            "model.patch=4 "
            "model.dim=96 model.depth=4 model.heads=4 model.blocks=2,2 model.lepe=0 train.steps=700 train.batch=64 "
            "train.rate=1e-3 train.schedule=cosine train.warmup_steps=40 train.weight_decay=0.01 train.clip=1 "
            "augment.crop=centre augment.flip=0.5 eval.epochs=0 eval.limit=3000 checkpoint.minutes=0.5 sample.steps=8",
        .quick_settings = "train.steps=60 train.warmup_steps=10 eval.limit=500",
        .paper_titles = {"paper: DiT-S/2, FID"},
        .paper_digits = 1,
        .arms = {{"neither", "neither", "model.cpe=none model.gate=false", {76.4}},
                 {"cpe", "CPE", "model.cpe=grid model.gate=false", {64.0}},
                 {"gate", "gate", "model.cpe=none model.gate=true", {68.5}},
                 {"both", "CPE and gate", "model.cpe=grid model.gate=true", {59.8}}},
        .columns = {LOSS},
        .claims = {{"CPE has a lower loss than neither", "loss", "cpe", "neither", 1, 0},
                   {"the gate has a lower loss than neither", "loss", "gate", "neither", 1, 0},
                   {"both together have a lower loss than neither", "loss", "both", "neither", 1, 0}},
        .dots = 1,
        .make = mhla_part_diffusion,
    },
    {
        .info = {.name = "language",
                 .title = "Language: bits per byte, by position, and recall (Tab. 6, MQAR)",
                 .claim = "as a language model MHLA does better than linear attention, and close to softmax, whose "
                          "perplexity is lower.",
                 .paper = "Tab. 6: models of 340M parameters, 10B tokens of FineWeb-Edu; word perplexity on WikiText",
                 .known = "linear attention here is MHLA with one block, so that everything else is equal. Updates "
                          "have the same number of tokens with windows of 512 and of 2,048 tokens. Beyond the trained "
                          "length, up to 8,192 tokens, MHLA extends its matrix by distance (clamp) or with longer "
                          "chunks (chunk); few documents are that long. Recall is zoology's task at one learning rate. "
                          "For it MHLA and linear attention have a convolution over four tokens; without one they do "
                          "not learn it within minutes (docs/mqar.md). --long: eight times the updates.",
                 .data = "text",
                 .minutes = 60,
                 .quick = 6,
                 .hours = 6},
        .settings = "task=text model.model=lm_micro model.hidden_size=128 model.num_hidden_layers=3 model.num_heads=4 "
                    "model.vocab_size=1024 train.context=512 train.batch=8 train.steps=500 train.min_rate=1e-4 "
                    "train.schedule=cosine-after train.warmup_steps=30 train.warmup_rate=1e-5 train.beta2=0.95 "
                    "train.weight_decay=0.01 train.clip=1 eval.epochs=0 eval.limit=20000 checkpoint.minutes=0.5 "
                    "lab.measured=200000 lab.far=8192 lab.width=64 lab.conv=4 lab.steps=2000 lab.tests=250 "
                    "lab.rate=0.003 lab.rates=1e-3,2e-3,4e-3 search.train.steps=120 search.train.warmup_steps=12 "
                    "search.eval.limit=512 search.log.steps=1",
        .quick_settings = "train.steps=30 train.warmup_steps=5 lab.measured=20000 lab.far=4096 lab.steps=200 "
                          "lab.tests=50 lab.rates=2e-3,4e-3 search.train.steps=4 search.train.warmup_steps=1",
        .long_settings = "train.steps=4000 train.warmup_steps=100 lab.steps=8000",
        .paper_titles = {"paper: WikiText ppl, 340M"},
        .paper_digits = 2,
        .arms = {{"mhla", "MHLA, 512 tokens", "model.attention=mhla model.chunk_size=32 model.num_blocks=16", {38.31}},
                 {"linear", "linear, 512 tokens", "model.attention=mhla model.chunk_size=512 model.num_blocks=1", {0}},
                 {"softmax", "softmax, 512 tokens", "model.attention=softmax", {34.57}},
                 {"mhla-2048",
                  "MHLA, 2,048 tokens",
                  "model.attention=mhla model.chunk_size=32 model.num_blocks=64" LONGER,
                  {0}},
                 {"linear-2048",
                  "linear, 2,048 tokens",
                  "model.attention=mhla model.chunk_size=2048 model.num_blocks=1" LONGER,
                  {0}},
                 {"softmax-2048", "softmax, 2,048 tokens", "model.attention=softmax" LONGER, {0}},
                 {"mhla-recall", "MHLA, recall", "lab.rates= lab.recall=mhla lab.chunk=16", {0}},
                 {"linear-recall", "linear, recall", "lab.rates= lab.recall=mhla lab.chunk=512", {0}},
                 {"softmax-recall", "softmax, recall", "lab.rates= lab.recall=softmax", {0}}},
        .columns = {{"bpb", "bits per byte", 1.0, 3},
                    {"bits_64", "bits per token, the first 64", 1.0, 3},
                    {"bits_512", "the last 64 of 512", 1.0, 3},
                    {"bits_2048", "the last 256 of 2,048", 1.0, 3},
                    {"clamp_8192", "clamp, tokens 7,169 to 8,192", 1.0, 3},
                    {"chunk_8192", "chunk, the same", 1.0, 3},
                    {"recall_4", "recall of 4 pairs, %", 100.0, 1},
                    {"recall_8", "8 pairs", 100.0, 1},
                    {"recall_16", "16 pairs", 100.0, 1},
                    {"recall_64", "64 pairs", 100.0, 1}},
        .claims = {{"MHLA has fewer bits per byte than linear attention, at 512 tokens", "bpb", "mhla", "linear", 1, 0},
                   {"... at 2,048", "bpb", "mhla-2048", "linear-2048", 1, 0},
                   {"MHLA needs fewer bits than linear attention late in the window (tokens 449 to 512)", "bits_512",
                    "mhla", "linear", 1, 0},
                   {"... (tokens 1,793 to 2,048)", "bits_2048", "mhla-2048", "linear-2048", 1, 0},
                   {"softmax has fewer bits per byte than MHLA, at 512 tokens", "bpb", "softmax", "mhla", 1, 0},
                   {"MHLA recalls more of 16 pairs than linear attention", "recall_16", "mhla-recall", "linear-recall",
                    0, 0}},
        .lines = {{"bits per token by position in the window",
                   "tokens before",
                   "bits",
                   "bits_",
                   {64, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048},
                   {0},
                   1,
                   0,
                   0},
                  {"beyond the trained length, by distance (clamp)", "tokens before", "bits", "clamp_", FAR_AWAY, 0, 0,
                   0},
                  {"beyond the trained length, with longer chunks (chunk)", "tokens before", "bits", "chunk_", FAR_AWAY,
                   0, 0, 0},
                  {"recall by number of pairs", "pairs", "%", "recall_", {4, 8, 16, 64}, {0}, 1, 0, 100.0}},
        .arm_in_quick = "mhla,linear,softmax,mhla-2048,mhla-recall,linear-recall,softmax-recall,",
        .prepare = mhla_part_corpus,
        .make = mhla_part_language,
    },
    {
        .info =
            {.name = "mixers",
             .title = "Language mixers: text, needles, recall (Tab. 6, MQAR)",
             .claim = "as a language model of 340M parameters MHLA has a lower perplexity than GLA, and a higher one "
                      "than softmax, Mamba2 and Gated DeltaNet.",
             .paper = "Tab. 6: models of 340M to 390M parameters, 10B tokens of FineWeb-Edu; word perplexity on "
                      "WikiText and on LAMBADA",
             .known =
                 "Mamba, Mamba2 and Gated DeltaNet have a convolution over four tokens, as published; MHLA, linear "
                 "attention, GLA and softmax (Transformer++) are published without. A claim about text compares two "
                 "arms with a convolution or two without, so MHLA, linear attention and GLA are trained both ways. "
                 "Softmax attention has no arm with a convolution. Linear attention is MHLA with one block. To keep "
                 "the numbers of parameters close, Mamba and Mamba2 have more layers and no MLPs, and RetNet and "
                 "Gated DeltaNet have narrower MLPs. Models have seen two million tokens, which is the beginning of "
                 "training; with more, the order may change. Needles lie within the trained length; models of this "
                 "size find few. Recall is zoology's task with another model: two layers without MLPs, a vocabulary "
                 "of 512 tokens, almost no filler, a convolution in all arms; softmax has an additional first layer "
                 "for it (docs/mqar.md). A model that has not begun to recall guesses at best among the values it "
                 "has read: 25 % of 4 pairs, 1.6 % of 64. Such figures are about the length of the training, not "
                 "about what the mixer can store.",
             .data = "text",
             .minutes = 60,
             .quick = 5},
        .settings =
            "task=text model.model=lm_micro model.hidden_size=128 model.num_hidden_layers=3 model.num_heads=4 "
            "model.vocab_size=1024 train.context=512 train.batch=8 train.steps=500 train.min_rate=1e-4 "
            "train.schedule=cosine-after train.warmup_steps=30 train.warmup_rate=1e-5 train.beta2=0.95 "
            "train.weight_decay=0.01 train.clip=1 eval.epochs=0 eval.steps=50 eval.limit=20000 "
            "checkpoint.minutes=0.5 lab.measured=200000 lab.needle=128,512 lab.needles=40 "
            "lab.rates=2e-3,4e-3,8e-3 search.train.steps=120 search.train.warmup_steps=12 search.eval.steps=0 "
            "search.eval.limit=512 search.log.steps=1 lab.width=64 lab.dense=1 lab.vocabulary=512 lab.batch=4096 "
            "lab.conv=4 lab.steps=2000 lab.tests=250 lab.recall_rates=5e-3,1e-2,2e-2,4e-2 lab.search_steps=600 "
            "recall.parameter_names=mamba recall.initializer_range=0.3 recall.use_output_gate=false "
            "recall.use_gate=false",
        .quick_settings = "train.steps=30 train.warmup_steps=5 eval.steps=10 eval.limit=5000 lab.measured=20000 "
                          "lab.needle=128 lab.needles=5 lab.rates=2e-3,4e-3 search.train.steps=4 "
                          "search.train.warmup_steps=1 lab.steps=100 lab.tests=20 lab.recall_rates=1e-2,2e-2 "
                          "lab.search_steps=20",
        .paper_titles = {"paper: WikiText ppl, 340M", "LAMBADA ppl"},
        .paper_digits = 2,
        .arms =
            {{"mhla",
              "MHLA",
              "model.attention=mhla model.chunk_size=32 model.num_blocks=16 model.use_short_conv=true "
              "lab.chunk=16",
              {0}},
             {"linear",
              "linear",
              "model.attention=mhla model.chunk_size=512 model.num_blocks=1 model.use_short_conv=true "
              "lab.chunk=256",
              {0}},
             {"softmax",
              "softmax",
              "model.attention=softmax recall.initializer_range=0.1 recall.linear_layers=[0] "
              "recall.linear_use_short_conv=true recall.linear_num_heads=1 recall.linear_expand_k=0.0625",
              {34.57, 60.46}},
             {"gla", "GLA", "model.attention=gla model.use_short_conv=true", {0}},
             {"retnet", "RetNet", "model.attention=retnet model.use_short_conv=true model.intermediate_size=336", {0}},
             {"mamba",
              "Mamba",
              "model.attention=mamba model.num_hidden_layers=7 recall.initializer_range=0.1",
              {38.32, 62.43}},
             {"mamba2",
              "Mamba2",
              "model.attention=mamba2 model.num_hidden_layers=6 recall.state_size=16",
              {35.40, 58.51}},
             {"gated_deltanet",
              "Gated DeltaNet",
              "model.attention=gated_deltanet model.intermediate_size=416 recall.head_dim=32",
              {35.01, 60.16}},
             {"mhla-bare",
              "MHLA, no convolution",
              "model.attention=mhla model.chunk_size=32 model.num_blocks=16 lab.recall_rates=",
              {38.31, 71.64}},
             {"linear-bare",
              "linear, no convolution",
              "model.attention=mhla model.chunk_size=512 model.num_blocks=1 lab.recall_rates=",
              {0}},
             {"gla-bare", "GLA, no convolution", "model.attention=gla lab.recall_rates=", {41.47, 86.98}}},
        .columns = {{"bpb", "bits per byte", 1.0, 3},
                    {"bits_64", "bits per token, the first 64", 1.0, 3},
                    {"bits_512", "the last 64 of 512", 1.0, 3},
                    {"needle_128", "needle in 128 tokens, % (guessing: 10)", 100.0, 1},
                    {"needle_512", "in 512", 100.0, 1},
                    {"recall_4", "recall of 4 pairs, %", 100.0, 1},
                    {"recall_8", "8 pairs", 100.0, 1},
                    {"recall_16", "16 pairs", 100.0, 1},
                    {"recall_64", "64 pairs", 100.0, 1}},
        .claims = {{"as published, MHLA has fewer bits per byte than GLA", "bpb", "mhla-bare", "gla-bare", 1, 0},
                   {"... than linear attention, which is not in the paper's table", "bpb", "mhla-bare", "linear-bare",
                    1, 0},
                   {"... softmax has fewer than MHLA", "bpb", "softmax", "mhla-bare", 1, 0},
                   {"with a convolution, MHLA has fewer bits per byte than GLA", "bpb", "mhla", "gla", 1, 0},
                   {"... than linear attention", "bpb", "mhla", "linear", 1, 0},
                   {"... Mamba2 has fewer than MHLA", "bpb", "mamba2", "mhla", 1, 0},
                   {"... Gated DeltaNet has fewer than MHLA", "bpb", "gated_deltanet", "mhla", 1, 0},
                   {"MHLA recalls more of 64 pairs than linear attention", "recall_64", "mhla", "linear", 0, 0},
                   {"softmax recalls more of 64 pairs than MHLA", "recall_64", "softmax", "mhla", 0, 0},
                   {"... Gated DeltaNet recalls more", "recall_64", "gated_deltanet", "mhla", 0, 0},
                   {"... Mamba2 recalls more", "recall_64", "mamba2", "mhla", 0, 0}},
        .lines = {{"held-out text during training",
                   "updates",
                   "bits per byte",
                   "curve_",
                   {50, 100, 150, 200, 250, 300, 350, 400, 450, 500},
                   {10, 20, 30},
                   0,
                   0,
                   0},
                  {"bits per token by position in the window",
                   "tokens before",
                   "bits",
                   "bits_",
                   {64, 128, 192, 256, 320, 384, 448, 512},
                   {0},
                   1,
                   0,
                   0},
                  {"recall by number of pairs", "pairs", "%", "recall_", {4, 8, 16, 64}, {0}, 1, 0, 100.0}},
        .prepare = mhla_part_corpus,
        .make = mhla_part_mixer,
        .remark = mhla_mixer_remark,
    },
    {
        .info = {.name = "video",
                 .title = "Clips: softmax replaced by MHLA, linear and hybrid attention (Tab. 5, Fig. 6)",
                 .claim = "at 31,500 tokens a video model fails to train if linear attention replaces its softmax "
                          "attention, while MHLA keeps softmax's quality in half the time.",
                 .paper = "Tab. 5 and Fig. 6: Wan2.1 of 1.3B parameters, adapted to MHLA",
                 .known = "a Wan of 250,000 parameters with two heads of 32, on grey clips of 8 frames of 32 x 32 "
                          "pixels, cut into 2,048 tokens, and for the first seed also into 8,192. The hybrid keeps "
                          "softmax in one of three layers. An adapted arm starts from the trained softmax model of its "
                          "seed; parameters that this model does not have are initialized. All adapted arms have one "
                          "learning rate, which was not searched. The arm softmax, trained on, gets the same number of "
                          "further updates. MHLA has no gate. It has 32 blocks, and 64 when trained on 8,192 tokens. "
                          "Times are for one evaluation of one clip. Each arm is timed in turn with the softmax model "
                          "of its seed.",
                 .data = "moving-fashion",
                 .minutes = 60,
                 .quick = 4},
        .settings =
            "task=diffusion model.model=wan_micro model.dim=64 model.ffn=256 model.depth=3 model.heads=2 "
            "model.patch=2 model.blocks=2,4,4 train.batch=4 train.steps=500 train.warmup_steps=50 "
            "train.weight_decay=0.01 train.clip=1 augment.flip=0.5 eval.steps=50 eval.limit=64 "
            "sample.columns=0 checkpoint.minutes=0.5 lab.rates=1e-3,2e-3,4e-3,8e-3 search.train.steps=100 "
            "search.train.warmup_steps=10 search.eval.steps=0 search.eval.epochs=0 search.eval.limit=4 "
            "search.log.steps=1 lab.grids=8x16x16,8x32x32,21x30x50 lab.seconds=2 lab.sampled=25 lab.long_seed=1 "
            "lab.long.model.patch=1 lab.long.model.blocks=4,4,4 lab.long.train.batch=2 "
            "lab.long.train.steps=200 lab.long.train.warmup_steps=20 lab.long.eval.steps=20 "
            "lab.long.eval.limit=16 lab.adapted.train.steps=250 lab.adapted.train.rate=1e-3 "
            "lab.adapted.train.warmup_steps=25 lab.long_adapted.train.steps=100 "
            "lab.long_adapted.train.warmup_steps=10",
        .quick_settings = "model.patch=4 model.blocks=2,2,2 train.steps=150 train.warmup_steps=15 eval.steps=25 "
                          "lab.rates=1e-3,4e-3 search.train.steps=20 search.train.warmup_steps=2 "
                          "lab.grids=8x8x8,8x16x16 lab.seconds=0.5 lab.sampled=20 lab.long.model.patch=2 "
                          "lab.long.model.blocks=2,4,4 lab.long.train.steps=30 lab.long.train.warmup_steps=3 "
                          "lab.long.eval.steps=5 lab.long.eval.limit=8 lab.adapted.train.steps=75 "
                          "lab.adapted.train.warmup_steps=8 lab.long_adapted.train.steps=15 "
                          "lab.long_adapted.train.warmup_steps=2",
        .paper_note = "The paper's figures of Tab. 5 and Fig. 6 are not available here. Clips are cut into 2,048 "
                      "tokens; more tokens means 8,192. With --quick it is 512 and 2,048.",
        .arms = {{"softmax", "softmax", "model.attention=softmax", {0}},
                 {"mhla", "MHLA", "model.attention=mhla", {0}},
                 {"linear", "linear", "model.attention=linear", {0}},
                 {"mhla-hybrid", "hybrid", "model.attention=mhla model.hybrid=3", {0}},
                 {"softmax-adapted", "softmax, trained on", "model.attention=softmax" ADAPTED, {0}},
                 {"mhla-adapted", "softmax to MHLA", "model.attention=mhla" ADAPTED, {0}},
                 {"linear-adapted", "softmax to linear", "model.attention=linear" ADAPTED, {0}},
                 {"mhla-hybrid-adapted", "softmax to hybrid", "model.attention=mhla model.hybrid=3" ADAPTED, {0}}},
        .columns = {{"loss", "test loss", 1.0, 4},
                    {"loss_long", "test loss, more tokens (one seed)", 1.0, 4},
                    {"ms_2048", "ms of an evaluation at 2,048 tokens", 1.0, 1},
                    {"ms_8192", "at 8,192", 1.0, 1},
                    {"ms_31500", "at 31,500", 1.0, 0},
                    {"share_8192", "share of softmax's time at 8,192", 1.0, 2},
                    {"share_31500", "at 31,500", 1.0, 2}},
        .claims = {{"from scratch, MHLA has a lower test loss than linear attention", "loss", "mhla", "linear", 1, 0},
                   {"... the hybrid has a lower one", "loss", "mhla-hybrid", "linear", 1, 0},
                   {"started from softmax, MHLA has a lower test loss than linear attention", "loss", "mhla-adapted",
                    "linear-adapted", 1, 0},
                   {"... the hybrid has a lower one", "loss", "mhla-hybrid-adapted", "linear-adapted", 1, 0},
                   {"softmax, trained on, has a lower test loss than MHLA started from softmax", "loss",
                    "softmax-adapted", "mhla-adapted", 1, 0},
                   {"MHLA takes less time than softmax at 8,192 tokens", "share_8192", "mhla", NULL, 1, 1.0},
                   {"... at 31,500 tokens", "share_31500", "mhla", NULL, 1, 1.0}},
        .lines = {{"test loss, from scratch",
                   "updates",
                   "",
                   "scratch_",
                   {50, 100, 150, 200, 250, 300, 350, 400, 450, 500},
                   {25, 50, 75, 100, 125, 150},
                   0,
                   0,
                   0},
                  {"test loss, started from softmax",
                   "updates",
                   "",
                   "adapted_",
                   {50, 100, 150, 200, 250},
                   {25, 50, 75},
                   0,
                   0,
                   0},
                  {"test loss, from scratch, more tokens (one seed)",
                   "updates",
                   "",
                   "scratch_long_",
                   {20, 40, 60, 80, 100, 120, 140, 160, 180, 200},
                   {5, 10, 15, 20, 25, 30},
                   0,
                   0,
                   0},
                  {"test loss, started from softmax, more tokens (one seed)",
                   "updates",
                   "",
                   "adapted_long_",
                   {20, 40, 60, 80, 100},
                   {5, 10, 15},
                   0,
                   0,
                   0},
                  {"time of an evaluation", "tokens", "ms", "ms_", {2048, 8192, 31500}, {512, 2048}, 1, 1, 0}},
        .clips = "First seed, four classes, the same noise for each arm.",
        .timed = 1,
        .make = mhla_part_video,
        .remark = mhla_video_remark,
    },
    {
        .info = {.name = "scaling",
                 .title = "Time and memory by number of tokens and blocks (Tab. 14, Fig. 1b)",
                 .claim = "the time of MHLA grows linearly with the number of tokens, as that of linear attention; "
                          "softmax's grows quadratically.",
                 .paper = "Tab. 14, Fig. 1b",
                 .known = "repetitions replace seeds. Softmax is computed in tiles and never stores T x T numbers, so "
                          "its workspace does not grow with the number of tokens.",
                 .minutes = 5,
                 .quick = 1},
        .settings = "lab.tokens=64,256,1024,4096,16384 lab.seconds=1",
        .quick_settings = "lab.tokens=64,256,1024,4096 lab.seconds=0.3",
        .paper_note = "Tab. 14 measures whole models on a GPU: with more blocks, DiT-S/2 at 4,096 tokens takes 147, "
                      "145, 148, 157 and 219 ms, almost constant as long as M * M <= T. Here it is one forward pass of "
                      "one layer with six heads of 64, float32, one sequence; the best of many calls.",
        .arms = {{"softmax", "softmax", "lab.kind=softmax", {0}},
                 {"linear", "linear", "lab.kind=linear", {0}},
                 {"mhla-4", "MHLA, M = 4", "lab.kind=mhla lab.blocks=2", {0}},
                 {"mhla-16", "MHLA, M = 16", "lab.kind=mhla lab.blocks=4", {0}},
                 {"mhla-64", "MHLA, M = 64", "lab.kind=mhla lab.blocks=8", {0}},
                 {"mhla-256", "MHLA, M = 256", "lab.kind=mhla lab.blocks=16", {0}}},
        .columns = {{"exponent", "growth from 1,024 tokens: time ~ T^", 1.0, 2},
                    {"ms_64", "ms at 64", 1.0, 3},
                    {"ms_256", "at 256", 1.0, 3},
                    {"ms_1024", "at 1,024", 1.0, 2},
                    {"ms_4096", "at 4,096", 1.0, 2},
                    {"ms_16384", "at 16,384", 1.0, 1},
                    {"mib_4096", "MiB of workspace at 4,096", 1.0, 2},
                    {"mib_16384", "at 16,384", 1.0, 2}},
        .claims = {{"MHLA with 16 blocks takes less time than softmax at 4,096 tokens", "ms_4096", "mhla-16", "softmax",
                    1, 0},
                   {"MHLA with 64 blocks (M * M = T) takes less time than softmax at 4,096 tokens", "ms_4096",
                    "mhla-64", "softmax", 1, 0},
                   {"softmax's time grows by a power above 1.75", "exponent", "softmax", NULL, 0, 1.75},
                   {"MHLA's time with 16 blocks grows by a power below 1.25", "exponent", "mhla-16", NULL, 1, 1.25}},
        .lines =
            {{"time of one layer", "tokens", "ms", "ms_", {64, 256, 1024, 4096, 16384}, {64, 256, 1024, 4096}, 1, 1, 0},
             {"workspace of one layer",
              "tokens",
              "MiB",
              "mib_",
              {64, 256, 1024, 4096, 16384},
              {64, 256, 1024, 4096},
              1,
              1,
              0}},
        .timed = 1,
        .make = mhla_part_scaling,
        .remark = mhla_scaling_remark,
    },
};
const int mhla_experiment_count = sizeof mhla_experiments / sizeof *mhla_experiments;
