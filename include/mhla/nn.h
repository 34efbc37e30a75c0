/* nn.h - libmhla-nn: whole models with MHLA, their files, and training, on top of mhla.h.
 *
 * This header is the manual. It goes from using a model to training one:
 *
 *   1. models: make, open, look into, save     4. training
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
 * A model on the disk is a folder: config.json (what it is) and model.safetensors (its weights, under the names of the
 * published checkpoints). A run of training is a folder of such folders. */

typedef struct mhla_model mhla_model;

/* A fresh model of a preset ("deit_tiny", "deit_small", "deit_base", "deit_nano"; of diffusion models "dit_nano", "dit_micro",
 * "dit_s_2" and on to "dit_xl_8"; of language models "lm_340m", "lm_nano", "lm_micro"), changed by `count` settings
 * "key=value" with the keys of config.json ("attention=softmax", "classes=10", "num_hidden_layers=12"), weights drawn from
 * `seed`. Of image classifiers and diffusion models:
 * The key `structure` is applied first whatever its place: "equal" (the default; everything but the attention is the
 * same for all attentions) or "released" (the published models: MHLA's and the linear one as released with the paper,
 * softmax as in timm and in facebookresearch's DiT). "attention" is mhla, linear or softmax; of classifiers also focused, inline,
 * mala or rala, whose own parts (biases, convolution, gate) are their authors' in either structure. */
MHLA_API mhla_status mhla_model_create(mhla_model **model, const char *preset, const char *const *settings, int count,
                                       uint64_t seed);
/* The same with weights of zero, whose memory is not touched: for looking at names, sizes and costs. */
MHLA_API mhla_status mhla_model_outline(mhla_model **model, const char *preset, const char *const *settings, int count);
/* The name of preset i, counted from 0 through all architectures. MHLA_ERANGE after the last. */
MHLA_API mhla_status mhla_model_preset(int i, char name[64]);

/* Opens a folder with config.json and model.safetensors (also sharded, with its index) or pytorch_model.bin, a
 * .safetensors file beside which config.json lies, or the folder of a run, whose best checkpoint is taken, or else its
 * last. Where training kept an average of the weights, too (ema.safetensors), and it did better when the two were tested
 * at this checkpoint, the average is opened: what counted as best is what is used. The weights of a published DiT (.pt,
 * .safetensors, or a folder with model.safetensors) need no config.json: their tensors tell what it would say. MHLA_EDATA
 * names the first tensor that is missing, unexpected or of another shape. */
MHLA_API mhla_status mhla_model_open(mhla_model **model, const char *path);
/* The same with a choice of weights: "raw", "ema" (MHLA_EDATA where there is none), NULL: as above. */
MHLA_API mhla_status mhla_model_open_weights(mhla_model **model, const char *path, const char *weights);
/* The same with a choice of how matrices are kept and multiplied. "bfloat16" halves their memory and is up to twice as fast where
 * the CPU multiplies bfloat16 (AVX512-BF16): linear layers and attentions round what they multiply and sum in float32; norms,
 * softmax and everything between the layers stay float32. Elsewhere it is as fast as float32. "q8_0" takes a quarter and
 * something; attentions are then float32. What is not float32 infers only. Rows that q8_0 cannot hold (no multiple of 32)
 * stay float32. */
typedef struct mhla_open_desc {
    size_t size;
    const char
        *storage; /* "float32", "bfloat16" or "q8_0"; NULL: float32, or of a language model as the file has them (Q4
                            of a GGUF: "q8_0" is not the same numbers, so float32) */
    const char *weights; /* "raw" or "ema"; NULL: as mhla_model_open */
} mhla_open_desc;
MHLA_API mhla_status mhla_model_open_as(mhla_model **model, const char *path, const mhla_open_desc *desc);
MHLA_API void mhla_model_free(mhla_model *model);

/* The same for a model that is there and has not been used yet. Numbers are rounded. */
MHLA_API mhla_status mhla_model_store(mhla_model *model, const char *storage);
/* How a model that keeps its weights in float32 multiplies from now on, in inference and in training: "float32" or "bfloat16".
 * Weights are rounded for the products alone; they themselves, their gradients, the optimiser and its averages stay float32. */
MHLA_API mhla_status mhla_model_set_precision(mhla_model *model, const char *precision);

/* Which threads the model uses from now on; NULL = the default context. The context must outlive the model. */
MHLA_API void mhla_model_set_context(mhla_model *model, const mhla_context *context);

/* What a model can do. Ask for what you need, not for the name of a model: calls that need a role fail with MHLA_EINVAL and
 * say what the model is instead. */
typedef enum mhla_role {
    MHLA_ROLE_CLASSIFIER, /* images to classes: section 2 */
    MHLA_ROLE_DENOISER,   /* noisy arrays to predictions: diffusion.h */
    MHLA_ROLE_DECODER,    /* the next token of a text: lm.h */
    MHLA_ROLE_ENCODER,    /* text to rows that a denoiser is conditioned on */
    MHLA_ROLE_AUTOENCODER /* pixels to latents and back */
} mhla_role;
MHLA_API int mhla_model_has(const mhla_model *model, mhla_role role); /* 1 or 0 */

typedef struct mhla_model_info {
    size_t size;
    const char *name;            /* "deit_tiny"; this and other texts live as long as the model */
    const char *config;          /* the text of config.json */
    int classes;                 /* 0: it knows no classes */
    int channels, height, width; /* of an input image; 0 without */
    int64_t tokens;              /* as attention sees them: padding and class token counted; of a language model: its
                                    context */
    int64_t parameters;
    int tensors;
    int64_t multiply_adds; /* of one image, every product, at `tokens` tokens; or of one token of text */
    int64_t
        multiply_adds_paper; /* linear layers and convolutions only, at the tokens without padding: the paper's count */
    const char *weights;     /* the file that the weights were read from; NULL for a fresh model */
    const char *kind;        /* "classifier", "diffusion" (diffusion.h), "language" (lm.h) */
    int64_t trainable;       /* parameters without those that stay as they are (a table of positions) */
} mhla_model_info;

MHLA_API mhla_status mhla_model_query(const mhla_model *model, mhla_model_info *info);

typedef struct mhla_tensor_info {
    size_t size;
    const char *name; /* "blocks.0.attn.to_qkv.weight" */
    int axes;
    int64_t shape[8];
    int64_t count;
    const float *data; /* NULL where it is not kept as float32 */
} mhla_tensor_info;

/* Parameter i of 0 .. tensors-1, in the order of the published lists. */
MHLA_API mhla_status mhla_model_tensor(const mhla_model *model, int i, mhla_tensor_info *info);

/* The name of a class, or NULL if the model does not know it. */
MHLA_API const char *mhla_model_class_name(const mhla_model *model, int i);

/* Writes config.json and model.safetensors into `folder`, which is made if it is not there. */
MHLA_API mhla_status mhla_model_save(const mhla_model *model, const char *folder);

/* ---- 2. Images in, classes out ---------------------------------------------------------------------------------- */

/* logits [n,classes] of images [n,channels,height,width], normalised as in training. */
MHLA_API mhla_status mhla_model_forward(mhla_model *model, float *logits, const float *images, int64_t n);

/* probabilities [classes] of a PNG or JPEG: read, resized and cropped as for evaluation, normalised. */
MHLA_API mhla_status mhla_model_classify(mhla_model *model, float *probabilities, const char *path);
MHLA_API mhla_status mhla_model_classify_bytes(mhla_model *model, float *probabilities, const void *bytes, size_t size,
                                               const char *name);

/* ---- 3. Evaluation ---------------------------------------------------------------------------------------------- */

typedef struct mhla_evaluation {
    size_t size;
    int64_t images, top1, top5; /* how many, how many right, how many with the right class among the first five */
    double loss;                /* mean cross entropy */
    double seconds;
    int classes;
    int64_t *class_images, *class_right; /* [classes]; free with mhla_evaluation_free */
    int64_t unreadable;                  /* files of the data that are no pictures, or broken ones: not counted */
    double logits_max,
        logits_rms; /* largest and root mean square difference of logits from the reference's; NaN without */
} mhla_evaluation;

/* Runs the model over a split ("test", "train") of a dataset: "fashion-mnist", "cifar10-test" or the path of a folder with
 * a folder per class; NULL: what the run that the model was opened from was trained on. Its classes are the model's of the
 * same name or, where the model knows none of the names, of the same number. limit: at most so many images, 0 = all.
 * progress (may be NULL) is called now and then. */
typedef void (*mhla_progress_fn)(void *user, int64_t done, int64_t all);
MHLA_API mhla_status mhla_model_evaluate(mhla_model *model, mhla_evaluation *result, const char *data,
                                         const char *split, int64_t limit, mhla_progress_fn progress, void *user);
/* The same beside another model with the same inputs and classes: how far the logits are from its logits, too. */
MHLA_API mhla_status mhla_model_evaluate_beside(mhla_model *model, mhla_model *reference, mhla_evaluation *result,
                                                const char *data, const char *split, int64_t limit,
                                                mhla_progress_fn progress, void *user);
MHLA_API void mhla_evaluation_free(mhla_evaluation *result);

/* Writes picture `index` of a split as a PNG or JPEG, by the ending of `path`; *label is its class. */
MHLA_API mhla_status mhla_data_export(const char *data, const char *split, int64_t index, const char *path, int *label);

/* ---- 4. Training ------------------------------------------------------------------------------------------------
 *
 * A recipe (TOML or JSON; recipes/ has some) and settings "key=value" that override it make a run: a folder with
 * recipe.json, metrics.jsonl, checkpoints/step-NNNNNNNN/ and the links `last` and `best` to two of those. A checkpoint
 * is written under another name first and is complete once it has its own. A run that was stopped, killed or ran out of
 * disk goes on from its last checkpoint, and ends with the same bytes as one that never stopped. */

typedef struct mhla_trainer mhla_trainer;

/* What a recipe may say: key i, or MHLA_ERANGE past the last. */
typedef struct mhla_recipe_key {
    size_t size;
    const char *name, *kind, *standard, *help; /* "train.epochs", "integer", its default as text, one line */
} mhla_recipe_key;
MHLA_API mhla_status mhla_recipe_query(int i, mhla_recipe_key *key);

/* A new run in the folder `run`, which must be empty or not exist. recipe is a path, or NULL for the defaults. */
MHLA_API mhla_status mhla_trainer_create(mhla_trainer **trainer, const char *run, const char *recipe,
                                         const char *const *settings, int count);
/* Goes on where the last complete checkpoint of `run` stands. */
MHLA_API mhla_status mhla_trainer_resume(mhla_trainer **trainer, const char *run);
MHLA_API void mhla_trainer_free(mhla_trainer *trainer);
MHLA_API void mhla_trainer_set_context(mhla_trainer *trainer, const mhla_context *context);

/* The first training pictures of a recipe, as a run would see them: cropped, flipped, changed, mixed. They are written as one
 * picture, `columns` in a row (.png or .jpg, by the ending of `out`); `report`, which may be NULL, is told the classes of each.
 * At most 400. The recipe's seed decides all of it. MHLA_EINVAL for a task without pictures. */
typedef struct mhla_preview_picture {
    size_t size;
    int64_t number, index;   /* its place in the grid, from 0, row by row; and in the training data */
    int labels;              /* classes that it counts as: several where pictures are mixed; at most 8 */
    const int *label;        /* [labels] */
    const char *const *name; /* [labels], "" where it has none */
    const double *share;     /* [labels], 1 in all; without what label smoothing adds */
} mhla_preview_picture;
typedef void (*mhla_preview_fn)(void *user, const mhla_preview_picture *picture);
MHLA_API mhla_status mhla_train_preview(const char *out, const char *recipe, const char *const *settings, int count,
                                        int64_t pictures, int columns, mhla_preview_fn report, void *user);

typedef enum mhla_train_kind {
    MHLA_TRAIN_NOTE,       /* text: something worth a line (what was initialised anew, files that were skipped) */
    MHLA_TRAIN_STEP,       /* a step is done */
    MHLA_TRAIN_EVALUATING, /* done, all: evaluation is under way */
    MHLA_TRAIN_EVALUATED,  /* the test_ fields */
    MHLA_TRAIN_CHECKPOINT  /* text: its path */
} mhla_train_kind;

typedef struct mhla_train_event {
    size_t size;
    mhla_train_kind kind;
    int64_t step, steps; /* done, of how many */
    double epoch, epochs;
    double loss, accuracy; /* of this step's batch; accuracy NaN where targets are mixed */
    double rate, gradient_norm;
    double images_per_second, seconds_left;
    int64_t done, all;
    double test_loss, test_accuracy, ema_accuracy; /* accuracies 0..1; ema NaN without EMA */
    int best;                                      /* the best so far */
    const char *text;
    const char *task; /* "images", "text", "diffusion": which fields are told; the others are NaN */
    double tokens_per_second;
    double test_bits_per_byte, ema_bits_per_byte; /* text: test_loss is per token, in nats */
    double ema_loss;                              /* diffusion: test_loss of the average */
} mhla_train_event;

typedef void (*mhla_train_fn)(void *user, const mhla_train_event *event);

/* Trains to the end, or until mhla_trainer_stop: a checkpoint is then written as well, and *finished is 0. A loss that
 * is not finite ends it with MHLA_ERANGE and the step; the last checkpoint stays. */
MHLA_API mhla_status mhla_trainer_run(mhla_trainer *trainer, mhla_train_fn report, void *user, int *finished);

/* Asks mhla_trainer_run to stop after the present step. The only call that a signal handler or another thread may
 * make. */
MHLA_API void mhla_trainer_stop(mhla_trainer *trainer);

/* Its model as it stands now; the trainer's, valid until that is freed. */
MHLA_API mhla_model *mhla_trainer_model(mhla_trainer *trainer);

/* One step on a batch of the caller's, for measuring and for loops of one's own: *loss (may be NULL) is the mean cross
 * entropy of images [n,channels,height,width] with labels [n]; then its gradients and AdamW with this rate, betas .9 and
 * .999, decay .05. The model keeps the optimiser's state for the next step. No dropping, no mixing of images. */
MHLA_API mhla_status mhla_model_step(mhla_model *model, float *loss, const float *images, const int32_t *labels,
                                     int64_t n, double rate);

/* ---- 5. Reports ------------------------------------------------------------------------------------------------- */

/* One self-contained HTML file with inline SVG: curves of the runs, accuracy per class, predictions, mixing matrices.
 * Runs may be under way, killed, or copied without their data. MHLA_EDATA for a folder that has nothing of a run. */
MHLA_API mhla_status mhla_report_write(const char *path, const char *const *runs, int count);

/* The same, telling each remark that stands on the page (lines that were left out, parts that are missing) as a
 * sentence; remark may be NULL. */
typedef void (*mhla_remark_fn)(void *user, const char *text);
MHLA_API mhla_status mhla_report_make(const char *path, const char *const *runs, int count, mhla_remark_fn remark,
                                      void *user);

/* ---- 6. Files --------------------------------------------------------------------------------------------------- */

typedef struct mhla_convert_desc {
    size_t size;
    const char *dtype;   /* "float32", "bfloat16" or "float16" for all floating-point tensors; NULL: as they are */
    int64_t shard_bytes; /* tensors of at most so many bytes in one file; 0: one file */
} mhla_convert_desc;

typedef struct mhla_convert_result {
    size_t size;
    int64_t tensors, numbers, bytes; /* written: how many, their elements, their bytes */
    int64_t files;
} mhla_convert_result;

/* Writes the tensors of `in` - a safetensors file, an index, a folder with either, a run (its best checkpoint, or else its
 * last), or a PyTorch checkpoint (.pth, .pt, .bin) - under their names to `out`: one file if that ends with .safetensors,
 * else a new folder, into which config.json, generation_config.json and the tokenizer's files beside them are copied. desc
 * and result may be NULL. MHLA_EDATA for a number that is too large for the type; nothing is left of `out` then. */
MHLA_API mhla_status mhla_convert(const char *out, const char *in, const mhla_convert_desc *desc,
                                  mhla_convert_result *result);

/* ---- 7. Data ----------------------------------------------------------------------------------------------------
 *
 * Datasets that the program can fetch (`mhla data`). The library has no network: it lays out and checks what was fetched. */

typedef struct mhla_data_info {
    size_t size;
    const char *name;   /* "fashion-mnist" */
    const char *folder; /* where it lies by default: "data/fashion-mnist" */
    const char *title;  /* what it is, one line */
    const char *origin; /* where it comes from */
    const char *licence;
    const char *by_hand; /* what to do where fetching does not work */
    /* Of sets out of one file of Python's package index, else NULL: */
    const char *requirement;    /* "bigbench==1.0.0" */
    const char *archive;        /* the file's name: "bigbench-1.0.0.tar.gz" */
    const char *archive_sha256; /* compared before anything of the file is read */
    int64_t archive_bytes;
} mhla_data_info;

/* Dataset i, or MHLA_ERANGE past the last. */
MHLA_API mhla_status mhla_data_query(int i, mhla_data_info *info);

/* *there: 1 if `folder` holds this dataset, every file with its SHA-256; 0 if there is no such folder, or an empty one. MHLA_EDATA if
 * the folder holds something else. */
MHLA_API mhla_status mhla_data_check(const char *name, const char *folder, int *there);

/* Makes `folder` of what was fetched: "fashion-mnist" of a folder with the four IDX files, .gz or not; "cifar10-test" of
 * the archive bigbench-1.0.0.tar.gz; "text" and "emoji" of a folder into which Debian's packages were unpacked; "smollm2" and
 * "inception" of their wheels. The folder appears when it is complete and checked, or not at all; the one above it must
 * be there. */
MHLA_API mhla_status mhla_data_lay_out(const char *name, const char *source, const char *folder);

/* ---- Files ------------------------------------------------------------------------------------------------------
 *
 * Files above 1 MiB (weights, datasets, shards, texts) are mapped into memory. Replace such a file by renaming another one over it,
 * never by writing into it: if a mapped file becomes shorter, or its disk fails, the next read of the missing part raises
 * SIGBUS, which ends the process.
 *
 * mhla_files_watch installs a handler of SIGBUS for the whole process, which calls lost(path) for a file of ours. It runs
 * inside the signal handler, in any thread: `lost` may use async-signal-safe functions only (write, _exit, siglongjmp
 * to the thread's own place). If it returns, and for any other SIGBUS, the handler that was there before takes over. NULL
 * removes the handler. The library itself never installs it; the program mhla does. Call it before threads use files. */
typedef void (*mhla_file_lost_fn)(const char *path);
MHLA_API void mhla_files_watch(mhla_file_lost_fn lost);

/* For a process that must not end, such as an interpreter. Between mhla_files_guard and mhla_files_release, in every thread, the
 * missing part of a mapped file reads as zeros. mhla_files_release takes what mhla_files_guard returned. It returns MHLA_EIO,
 * with a message that names the file, if any file lost a part since then: discard whatever was read meanwhile. Pairs may
 * overlap. A guard has precedence over mhla_files_watch; the handler of SIGBUS is there while there is a guard. */
MHLA_API int64_t mhla_files_guard(void);
MHLA_API mhla_status mhla_files_release(int64_t guard);

/* Writes a whole file: under a temporary name beside it, flushed to the disk, then renamed. `path` keeps what it had if that fails. */
MHLA_API mhla_status mhla_file_write(const char *path, const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif
#endif
