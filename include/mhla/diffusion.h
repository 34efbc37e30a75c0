/* diffusion.h - image generation: samplers, sampling with a model, and measures of generated images. On top of nn.h.
 *
 *   1. samplers: from noise to data with your own network
 *   2. images from a model, and image files
 *   3. measures: the distance between two sets of images
 *   4. latents: autoencoders
 *   5. captions: encoded once, for training
 *   6. pipelines: from a sentence to an image or a clip
 *
 * The conventions are those of nn.h: statuses with one sentence in mhla_message(), structs that begin with their size,
 * zero is always the default, handles belong to the caller. */
#ifndef MHLA_DIFFUSION_H
#define MHLA_DIFFUSION_H

#include <mhla/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Samplers ----------------------------------------------------------------------------------------------
 *
 * A sampler does not depend on a model. It gives the times at which to evaluate a network, takes the outputs, and updates x:
 *
 *   for (int i = 0; i < mhla_sampler_steps(s); i++) {
 *       network(output, x, mhla_sampler_time(s, i));
 *       mhla_sampler_step(s, i, x, output, noise);
 *   }
 *
 * Elements are independent: the result of one sample does not depend on the others in the batch. */

typedef struct mhla_sampler mhla_sampler;

typedef struct mhla_sampler_desc {
    size_t size;
    const char
        *process; /* what the network predicts: "linear" (default) or "cosine", the noise of a diffusion with 1000 noise
                            levels; "flow", the velocity noise - data */
    const char
        *method; /* "ddpm" (default for diffusions), "ddim"; "euler" (default for flows); "dpm++", "unipc": for both */
    const char *table; /* noise levels. Flows: NULL, like the public library of each method; "wan", like Wan's own code.
                          Diffusions: as in the public DiT code, "250" evenly with both ends, "10,15,20" for the number in
                          each of three sections, "ddim50" by a whole stride; or "solver25", evenly without the lowest level.
                          NULL: "<steps>" with ddpm; "ddim<steps>" with ddim if that divides 1000, otherwise "<steps>";
                          "solver<steps>" with dpm++ and unipc */
    int steps;         /* 0: the number in the table of a diffusion, otherwise 250 with ddpm and 50 with others */
    double eta;        /* ddim: added noise, 0..1 */
    double shift;      /* flows: shifts levels towards the noise; 0: 1, no shift */
    int clip;          /* clips predicted data to [-1,1] at every step */
    int learned_sigma; /* the network's output has twice the channels: noise, then variance (used by ddpm) */
    int64_t batch, channels, pixels; /* x [batch,channels,pixels]; output the same, or [batch,2*channels,pixels] */
} mhla_sampler_desc;

MHLA_API mhla_status mhla_sampler_create(mhla_sampler **sampler, const mhla_sampler_desc *desc);
MHLA_API void mhla_sampler_free(mhla_sampler *sampler);

MHLA_API int mhla_sampler_steps(const mhla_sampler *sampler);
MHLA_API const char *mhla_sampler_method(const mhla_sampler *sampler);
/* The time input of the network at step i: 0 .. 1000, whole numbers for diffusions. */
MHLA_API double mhla_sampler_time(const mhla_sampler *sampler, int i);
/* 1 if step i needs standard normal noise [batch,channels,pixels]. */
MHLA_API int mhla_sampler_wants_noise(const mhla_sampler *sampler, int i);
/* Turns x of step i into x of step i+1. Call it for each step in order from 0; step 0 restarts the sampler. If the output has
 * a number that is not finite, it returns MHLA_ERANGE and leaves x unchanged; the message names the step and the sample. */
MHLA_API mhla_status mhla_sampler_step(mhla_sampler *sampler, int i, float *x, const float *output, const float *noise);
/* The data that the last step predicted [batch,channels,pixels]; valid until the next step. */
MHLA_API const float *mhla_sampler_predicted(const mhla_sampler *sampler);

/* ---- 2. Images from a model ------------------------------------------------------------------------------------- */

typedef struct mhla_sample_state {
    size_t size;
    int step, steps;        /* of this batch: done, in all */
    int64_t first, count;   /* the batch: images first .. first+count-1 */
    int64_t done, all;      /* network evaluations of one image, over all images */
    const float *x;         /* [count,channels,height,width], the current x */
    const float *predicted; /* the same shape, the predicted data */
} mhla_sample_state;
/* Returns nonzero to stop. */
typedef int (*mhla_sample_fn)(void *user, const mhla_sample_state *state);

typedef struct mhla_sample_desc {
    size_t size;
    int64_t images;
    const int32_t *classes; /* [images]; the number of classes itself is the null label, no class */
    const uint64_t *seeds;  /* [images]: image i depends only on seeds[i], its class and the settings below */
    double guidance;        /* 0: 1, no guidance. A model of classes needs a null label */
    int guided_channels;    /* number of channels that guidance changes, 0: all (facebookresearch's DiT: 3) */
    const char *method;     /* this and the next four: see mhla_sampler_desc */
    int steps;
    double eta, shift;
    int clip;
    int height, width; /* 0: as in training; multiples of the patch */
    int batch;         /* images in a batch, 0: by the model's size. Does not change the result by a bit */
    mhla_sample_fn report;
    void *user;
    const float *start; /* [images,channels,height,width]: initial noise, NULL: drawn from the seeds */
    const float *noise; /* [steps,images,channels,height,width]: noise of the steps that need some, NULL: likewise */
    int frames;         /* of clips: 0: as in training. All arrays then are [...,channels,frames,height,width] */
    /* Text models (mhla_model_info.text_width > 0): rows [texts,longest,text_width] of token embeddings, for example from
     * mhla_text_encode. Only the first lengths [texts] rows of each text are used (NULL: all). Image i is made from text classes[i].
     * Guidance leads away from text `negative`, usually the empty text. Models of classes ignore these fields. */
    const float *rows;
    const int32_t *lengths;
    int64_t texts, longest;
    int negative;
    /* A file that is written after every step, whole or not at all. If it exists, sampling resumes from it, with the same result to the
     * last bit; MHLA_EINVAL if it belongs to other images. The caller removes it at the end. NULL: none. */
    const char *state;
} mhla_sample_desc;

/* images [desc->images, channels, height, width], values about -1..1. MHLA_EINVAL names the setting that is wrong,
 * MHLA_ERANGE the step at which a number was not finite. *stopped (may be NULL) is 1 if report stopped it. */
MHLA_API mhla_status mhla_model_sample(mhla_model *model, float *images, const mhla_sample_desc *desc, int *stopped);

/* The standard normal noise [count] that mhla_model_sample draws for an image of this seed; count is channels*height*width.
 * Step 0 is the initial noise, step i+1 is the noise for mhla_sampler_step i. With it your own loop makes the same image. */
MHLA_API mhla_status mhla_sample_noise(float *noise, int64_t count, uint64_t seed, int step);

/* Checks desc like mhla_model_sample, and replaces its zeros by the defaults; nothing is sampled. */
MHLA_API mhla_status mhla_model_sample_settle(mhla_model *model, mhla_sample_desc *desc);

/* *class_ of a name (upper or lower case), a number, or "none", the null label. MHLA_EINVAL names the nearest class. */
MHLA_API mhla_status mhla_model_class_find(const mhla_model *model, const char *name, int *class_);

/* SHA-256 of the model's weights (names, shapes, values), 64 digits and a zero. It identifies the model of an image. */
MHLA_API mhla_status mhla_model_hash(const mhla_model *model, char text[65]);

/* mhla_model_hash of the autoencoder on whose latents a diffusion model was trained, or "" where its config.json does not say. */
MHLA_API const char *mhla_model_vae(const mhla_model *model);

/* Pixels of 8 bits, 1 grey or 3 RGB, [height,width,channels]. Start with {.size = sizeof}. */
typedef struct mhla_picture {
    size_t size;
    int width, height, channels;
    uint8_t *pixels; /* this and text: freed by mhla_picture_free */
    char *text;      /* stored in the file under the keyword "mhla", or NULL */
} mhla_picture;

/* Tiles images [n,channels,height,width] into one, `columns` in a row with white gaps. A value x becomes
 * clamp(x/2 + 0.5, 0, 1) * 255, rounded. MHLA_EINVAL if there are not 1 or 3 channels: latents are not pixels. */
MHLA_API mhla_status mhla_picture_tile(mhla_picture *picture, const float *images, int64_t n, int channels, int height,
                                       int width, int columns);
/* Writes a PNG, or a WebP of quality 90 if the path ends with .webp, whole or not at all. WebP needs libwebp.so.7. Several frames
 * of one size make an endless animation that shows frame i for seconds[i]. Programs that do not play animations show the last frame.
 * The stored text is that of the last frame. */
MHLA_API mhla_status mhla_picture_write(const char *path, const mhla_picture *frames, int64_t count,
                                        const double *seconds);
/* Writes frames of one size and 1 or 3 channels as an uncompressed video (YUV4MPEG2, .y4m) that other programs can compress; each frame is
 * shown for `seconds`. "-" is standard output. */
MHLA_API mhla_status mhla_video_write(const char *path, const mhla_picture *frames, int64_t count, double seconds);
/* Reads a PNG or JPEG (of an animated PNG the default image), or the last frame of a WebP. */
MHLA_API mhla_status mhla_picture_read(mhla_picture *picture, const char *path);
MHLA_API void mhla_picture_free(mhla_picture *picture); /* frees its contents; may be repeated */

/* How long a frame of a clip is shown. */
#define MHLA_FRAME_SECONDS 0.125

/* Writes images [n,channels,height,width], or latents, to a NumPy file (.npy, float32), whole or not at all. */
MHLA_API mhla_status mhla_images_write(const char *path, const float *images, int64_t n, int channels, int height,
                                       int width);
/* The same of clips [n,channels,frames,height,width]. */
MHLA_API mhla_status mhla_clips_write(const char *path, const float *clips, int64_t n, int channels, int frames,
                                      int height, int width);

/* How an image was made: the text that `mhla sample` stores in it, and that --like reads. */
typedef struct mhla_sample_record {
    size_t size;
    char *model; /* its name on the command line; this, vae and the two lists are freed by mhla_sample_record_free */
    char weights[65]; /* mhla_model_hash */
    char choice[8];   /* of weights: "raw", "ema", or "" */
    int64_t images;
    int32_t *classes;
    uint64_t *seeds;
    char method[16];
    int steps, clip;
    double eta, shift, guidance;
    int guided_channels, height, width;
    int columns;          /* of the grid */
    int animated;         /* frames, or 0 */
    char version[32];     /* of the program */
    char isa[16];         /* instruction set of the kernels: others round differently */
    char dtype[16];       /* storage of mhla_open_desc, or "": float32 */
    char *vae;            /* the autoencoder that decoded the latents, by its name on the command line; or NULL */
    char vae_weights[65]; /* its mhla_model_hash */
    int frames;           /* of a clip; 0: an image */
} mhla_sample_record;

/* Writes one JSON object, allocated by malloc: free() it. */
MHLA_API mhla_status mhla_sample_record_write(char **text, const mhla_sample_record *record);
/* Reads it; messages use `name`. MHLA_EDATA for a text that is not a record or has impossible values. */
MHLA_API mhla_status mhla_sample_record_read(mhla_sample_record *record, const char *text, const char *name);
MHLA_API void mhla_sample_record_free(mhla_sample_record *record);

/* One evaluation of the network, for your own loops. */
typedef struct mhla_denoise {
    size_t size;
    int64_t count;
    const float *x;         /* [count,channels,height,width], of a clip [count,channels,frames,height,width] */
    const float *times;     /* [count], 0..1000 */
    const int32_t *labels;  /* [count], classes or the null label; NULL for a model that takes text */
    int height, width;      /* 0: as in training; multiples of the patch */
    int frames;             /* 0: as in training; models of images have none */
    const float *rows;      /* [count,longest,width of a row]: text, for a model that takes it; else NULL */
    const int32_t *lengths; /* [count]: rows of each text that count, 0..longest; NULL: all */
    int64_t longest;
} mhla_denoise;

/* output has the shape of x, with twice the channels if the model has learned sigma. The output of a sample does not depend on
 * the others by a bit. MHLA_EINVAL if labels or text are missing, or given to a model that does not take them. */
MHLA_API mhla_status mhla_model_denoise(mhla_model *model, float *output, const mhla_denoise *desc);
/* One training step towards target, which has the shape of the output. *loss (may be NULL) is the mean squared error. The step
 * computes gradients and applies AdamW with this rate, betas .9 and .999, no decay. The model keeps the optimiser's state for
 * the next step. */
MHLA_API mhla_status mhla_model_denoise_step(mhla_model *model, float *loss, const mhla_denoise *desc,
                                             const float *target, double rate);
/* The cost of one evaluation at this height and width, and the number of tokens that attention sees; either may be NULL. */
MHLA_API mhla_status mhla_model_denoise_cost(const mhla_model *model, int64_t *multiply_adds, int64_t *tokens,
                                             int height, int width);

/* ---- 3. Measures ------------------------------------------------------------------------------------------------
 *
 * Two sets of images are compared by a network's features of them. With the 2015 Inception network (its weights are a file)
 * the distance is FID. With another classifier it is a Fréchet distance, comparable only with others by this classifier. */

typedef struct mhla_measure_desc {
    size_t size;
    const char *real,
        *generated;       /* a dataset ("fashion-mnist", a folder with images, nested or not) or a .npy of images */
    const char *split;    /* of a dataset: "test" (default), "train" */
    const char *features; /* a file with Inception's weights, or a model or run of an image classifier */
    int64_t limit;        /* largest number of images from each set, evenly spread; 0: all */
    int neighbours;       /* for precision and recall; 0: 3 */
    mhla_progress_fn progress;
    void *user;
    /* How images are resized to 299 x 299 for Inception, never antialiased: "torch" (default; between pixel centres, like
     * pytorch-fid) or "tf1" (from corners, like the original code and ADM's). */
    const char *resize;
    /* Crops the centre of this size out of every image first, with black around smaller ones; 0: no crop. Use it for a model
     * that was trained on images of 28 x 28 within 32 x 32. */
    int height, width;
    /* A folder for the features, created if it does not exist: real.npy and generated.npy [images,dims] and, if the network
     * has classes, generated.probabilities.npy [images,classes]; with Inception also real.spatial.npy and
     * generated.spatial.npy [images,2023]. NULL: none */
    const char *dump;
    /* An autoencoder that decodes latents: a .npy of float32 [n,latents,height,width], as `mhla sample` writes them. NULL: none. And the
     * memory that it may take, see mhla_coding. */
    const char *vae;
    size_t memory;
} mhla_measure_desc;

typedef struct mhla_measures {
    size_t size;
    char features[160];      /* "Inception 2015 (2048 features)", or the classifier's name and path */
    int inception;           /* 1: `distance` may be called FID */
    int64_t real, generated; /* number of images */
    int dims;
    double distance; /* Fréchet */
    double score,
        score_deviation; /* Inception score of the generated images, over the 10 parts of torch-fidelity; NaN if the network has
                                      no classes (Inception without its last layer) */
    double precision, recall; /* NaN with too few images */
    int labelled; /* 1: the classifier knows the classes of the generated images. Classes are folders, matched by name or,
                        as `mhla sample` writes them ("3-Dress"), by the number in front */
    double accuracy; /* share of generated images that the classifier assigns to their class; NaN if not labelled */
    double
        spatial_distance; /* sFID: Fréchet distance of the 17 x 17 x 7 spatial features of Inception; NaN with a classifier */
} mhla_measures;

MHLA_API mhla_status mhla_measure(mhla_measures *result, const mhla_measure_desc *desc);

/* The CLIP score: how well images fit the texts they were made for. */
typedef struct mhla_clip_desc {
    size_t size;
    const char *model;     /* CLIP: a folder or a file, under Hugging Face's, OpenAI's or open_clip's names */
    const char *images;    /* a folder with images in it, a dataset's test split, or a .npy of images */
    const char *prompts;   /* a file with a line of text for each image, in the order of the names of their files */
    const char *tokenizer; /* a file or folder; NULL: beside the model's weights */
    int64_t limit;         /* largest number of images, evenly spread; 0: all */
    float *scores;         /* gets the score of each pair, as many as there are images; or NULL */
    mhla_progress_fn progress;
    void *user;
} mhla_clip_desc;

typedef struct mhla_clip_scores {
    size_t size;
    char model[160]; /* its name and path */
    int64_t pairs;
    int64_t cut;  /* prompts with more tokens than the model takes, of which the rest was left out */
    int side;     /* pixels that the model sees: the shorter side is resized to it, then the centre */
    double score; /* mean of 100 times the cosine of the vectors of an image and its text */
    double error; /* its standard error; NaN of one pair */
} mhla_clip_scores;

MHLA_API mhla_status mhla_clip_score(mhla_clip_scores *result, const mhla_clip_desc *desc);

/* ---- 4. Latents -------------------------------------------------------------------------------------------------
 *
 * An autoencoder encodes pixels to latents, which a diffusion model learns, and decodes latents to pixels. Supported are Stable
 * Diffusion's (AutoencoderKL), SANA's (AutoencoderDC), and Wan's for clips (AutoencoderKLWan). Latents in this API are scaled as a
 * diffusion model sees them: (z - shift) * scale of the network's output z, or (z - mean) / deviation, channel by channel.
 *
 * An autoencoder of clips encodes 1 + n * frames frames of pixels to 1 + n frames of latents. An image is a clip of one frame. */

typedef struct mhla_codec_info {
    size_t size;
    int channels, outputs, latents; /* channels of the encoder's input, of the decoder's output, of latents */
    int factor;                     /* pixels per latent on each side */
    double scale, shift;
    int encodes, decodes;          /* a file may have one half only */
    int frames;                    /* frames of pixels per frame of latents after the first; 0: images only */
    const float *mean, *deviation; /* [latents], valid as long as the model; NULL: scale and shift are used */
} mhla_codec_info;

/* MHLA_EINVAL if the model is not an autoencoder. */
MHLA_API mhla_status mhla_codec_query(const mhla_model *model, mhla_codec_info *info);

typedef struct mhla_coding {
    size_t size;
    int height, width; /* of the images, pixels: multiples of the factor; both 0: as in training */
    size_t memory;     /* limit in bytes for the network and its workspace; 0: as much as a whole image needs. Workspace
                          is counted as for 64 threads, so that the tiles do not depend on the number of threads */
    int tile; /* side of a tile, pixels; 0: the largest that memory allows. Tiles overlap by a quarter and are blended;
                          norms and attention see one tile, so the result differs slightly from that of the whole image */
    mhla_progress_fn progress; /* tiles done and in all; may be NULL */
    void *user;
    /* Written by mhla_coding_settle: */
    size_t peak;           /* bytes of the network and its workspace */
    int tiles;             /* per image; 1: not tiled */
    int64_t multiply_adds; /* per image */
    /* Set by the caller: frames of pixels in a clip, 1 plus a multiple of the autoencoder's `frames`; 0: 1. A clip is processed frame
     * by frame, which gives exactly the result of the whole clip. An autoencoder of images takes any number and processes each frame
     * as a separate image: clips and latents are [n,channels,frames,height,width] with equal numbers of frames. */
    int frames;
} mhla_coding;

/* Checks coding and replaces its zeros by the defaults; nothing is computed. MHLA_ENOMEM if not even the smallest tile fits. */
MHLA_API mhla_status mhla_coding_settle(mhla_model *model, mhla_coding *coding, int decode);
/* mean, deviation [n,latents,height/factor,width/factor] of images [n,channels,height,width], values -1..1: a latent is mean +
 * deviation * noise; an AutoencoderDC has deviations of 0. deviation may be NULL. For clips, frames come before the height in all arrays. */
MHLA_API mhla_status mhla_model_encode(mhla_model *model, float *mean, float *deviation, const float *images, int64_t n,
                                       const mhla_coding *coding);
/* images [n,outputs,height,width], not clipped, from latents [n,latents,height/factor,width/factor]. For clips, frames come before the
 * height in both. */
MHLA_API mhla_status mhla_model_decode(mhla_model *model, float *images, const float *latents, int64_t n,
                                       const mhla_coding *coding);

typedef struct mhla_latents_desc {
    size_t size;
    const char *source, *out; /* a dataset of images; the folder to write */
    int height, width;        /* images get this size, the shorter side first, then the centre: multiples of the factor;
                                   both 0: as in the autoencoder's training */
    mhla_progress_fn progress; /* images done and in all; may be NULL */
    void *user;
} mhla_latents_desc;

typedef struct mhla_latents_made {
    size_t size;
    int64_t train, test, unreadable,
        kept;                    /* images of both parts; of all: unreadable ones, and those that existed already */
    int channels, height, width; /* of a latent */
} mhla_latents_made;

/* Encodes all images of a dataset once, original and flipped, for training a diffusion model on their latents: mhla_trainer_* takes the
 * folder as data. If the process is killed, the same call later makes what is missing. MHLA_EINVAL for a folder with other files, or
 * with latents of other images, of another size or from another autoencoder. made may be NULL. */
MHLA_API mhla_status mhla_latents_make(mhla_model *vae, const mhla_latents_desc *desc, mhla_latents_made *made);

/* ---- 5. Captions -------------------------------------------------------------------------------------------------
 *
 * A text-to-image model is trained on images and their captions, which a frozen text encoder has encoded once: a row of numbers for
 * each token. */

typedef struct mhla_captions_desc {
    size_t size;
    const char *source,
        *out; /* a dataset of images with captions, or a text file with one text per line; the folder to write */
    const char *instruction; /* this and the next: see mhla_encoder_desc in lm.h */
    int64_t longest;
    mhla_progress_fn progress; /* texts done and in all; may be NULL */
    void *user;
    const char *rows; /* their type in files: "float32" (or NULL), or "bfloat16", half as large */
} mhla_captions_desc;

typedef struct mhla_captions_made {
    size_t size;
    int64_t train, test, kept; /* captions of both parts; texts that were encoded already */
    int64_t longest;           /* rows of the longest text */
    int width;                 /* of a row */
    int64_t cut;               /* texts of this call that were truncated */
} mhla_captions_made;

/* Encodes the caption of every image of a dataset, and the empty text, for training a text-to-image model: mhla_trainer_* takes the
 * folder as data.captions. If the process is killed, the same call later makes what is missing, with the same bytes. MHLA_EINVAL for a
 * folder with other files, or with rows of another encoder; MHLA_EDATA names a caption that has changed. made may be NULL. */
MHLA_API mhla_status mhla_captions_make(mhla_model *encoder, const mhla_captions_desc *desc, mhla_captions_made *made);

/* ---- 6. Pipelines -----------------------------------------------------------------------------------------------
 *
 * A pipeline is a folder of components in the layout of diffusers: a text encoder with its tokenizer, a transformer (a diffusion model
 * that takes text), scheduler settings and an autoencoder, listed in model_index.json. Each component is opened, used and released in
 * turn, so the largest one determines the memory of a run.
 *
 *   mhla_pipeline_open(&p, &(mhla_pipeline_desc){.size = sizeof(mhla_pipeline_desc), .folder = "Sana_600M_512px_diffusers"});
 *   mhla_make_desc d = {.size = sizeof d, .images = 1, .prompts = &prompt, .seeds = &seed};
 *   mhla_pipeline_settle(p, &d);                                        // height, width, frames, steps, ...
 *   mhla_pipeline_make(p, pixels, &d, NULL); */

typedef struct mhla_pipeline mhla_pipeline;

typedef struct mhla_pipeline_desc {
    size_t size;
    const char *folder; /* with model_index.json; NULL: transformer, vae and text_encoder must be given */
    /* Replacements for components of the folder: models as for mhla_model_open (a text encoder may be a GGUF file), a tokenizer as for
     * mhla_tokenizer_open, a scheduler_config.json. */
    const char *transformer, *vae, *text_encoder, *tokenizer, *scheduler;
    const char *storage; /* "float32" or "bfloat16"; NULL: float32, for the text encoder the type of its file */
    const char
        *texts; /* a folder that caches encoded prompts, so that they need no encoder the next time; NULL: none */
    const mhla_context *context; /* must outlive the pipeline */
} mhla_pipeline_desc;

typedef struct mhla_pipeline_info {
    size_t size;
    const char *name; /* "SanaPipeline"; this and other texts live as long as the pipeline */
    const char *transformer, *vae, *text_encoder,
        *tokenizer;       /* their paths; tokenizer NULL: that of the text encoder */
    const char *negative; /* the default negative prompt */
    char weights[65];     /* identifies the components' weights: a hash of some bytes of each tensor */
    int clips;            /* 1: generates clips */
    int outputs;          /* channels of pixels */
    int factor;           /* height and width are multiples of it */
    int frames;           /* the number of frames is 1 plus a multiple of it; 0: images */
    double seconds;       /* duration of a frame */
} mhla_pipeline_info;

/* 1 if the folder has a model_index.json, or the files of a pipeline as its authors publish them; else 0. */
MHLA_API int mhla_pipeline_is(const char *folder);
/* Checks that all components exist and fit together; reads no weights. */
MHLA_API mhla_status mhla_pipeline_open(mhla_pipeline **pipeline, const mhla_pipeline_desc *desc);
MHLA_API void mhla_pipeline_free(mhla_pipeline *pipeline);
MHLA_API mhla_status mhla_pipeline_query(const mhla_pipeline *pipeline, mhla_pipeline_info *info);

typedef enum mhla_component { MHLA_TEXT_ENCODER, MHLA_TRANSFORMER, MHLA_VAE, MHLA_COMPONENTS } mhla_component;

/* Progress of a pipeline. A report has a note, or pixels, or neither. */
typedef struct mhla_make_state {
    size_t size;
    mhla_component component; /* at work */
    int64_t done, all;        /* of its work: texts; steps of all images; images or tiles */
    int step, steps;          /* transformer: of the current images */
    const char *note;         /* a sentence for the user, or NULL */
    int64_t image;            /* the number of the image in pixels */
    const float *pixels;      /* [outputs,(frames,)height,width] of a finished image, or of a preview; or NULL */
    int preview; /* 1: pixels [outputs,height,width] are a preview of the image, or of the first frame of the clip */
    const float *latents; /* transformer: the current latents, or NULL */
} mhla_make_state;
typedef int (*mhla_make_fn)(void *user, const mhla_make_state *state); /* nonzero stops */

typedef struct mhla_make_desc {
    size_t size;
    int64_t images;
    const char *const *prompts; /* [images] */
    const char *negative;       /* negative prompt; NULL: the pipeline's default */
    const uint64_t *seeds;      /* [images]: an image depends on its prompt, its seed and the settings below */
    const char *instruction;    /* put in front of prompts; NULL: the pipeline's default, "": none */
    int64_t rows;               /* largest number of tokens of a text; 0: the pipeline's limit */
    double guidance;            /* this and the next three, 0 or NULL: the pipeline's defaults; guidance 1: none */
    const char *method;         /* "euler", "dpm++", "unipc" */
    int steps;
    double shift;
    int height, width, frames; /* pixels; 0: as in training */
    /* 0: SANA generates the nearest size that it was trained on, then resizes and crops it. 1: exactly height and width. */
    int exact;
    int batch;         /* images per batch of the transformer; does not change the result by a bit */
    size_t memory;     /* limit for decoding, see mhla_coding */
    int preview;       /* decode a preview every `preview` steps; 0: none */
    const char *state; /* a file that is written after every step: see mhla_sample_desc */
    mhla_make_fn report;
    void *user;
    const float *start; /* [images,latents,...]: initial noise, NULL: drawn from the seeds */
    /* Written by mhla_pipeline_settle: the size before resizing; tiles of decoding: 1 is the whole, exactly, more overlap and are blended,
     * with `tile` pixels a side */
    int made_height, made_width;
    int tiles, tile;
} mhla_make_desc;

/* Checks desc and replaces its zeros by the defaults. MHLA_EINVAL names the setting. */
MHLA_API mhla_status mhla_pipeline_settle(mhla_pipeline *pipeline, mhla_make_desc *desc);

/* Pixels [images,outputs,(frames,)height,width], about -1..1; NULL if report takes them. */
MHLA_API mhla_status mhla_pipeline_make(mhla_pipeline *pipeline, float *pixels, const mhla_make_desc *desc,
                                        int *stopped);

/* Estimated memory and work of a component; reads no weights. */
typedef struct mhla_component_plan {
    size_t size;
    size_t weights, work; /* bytes */
    double multiply_adds; /* of all images */
    int64_t parameters;
} mhla_component_plan;
MHLA_API mhla_status mhla_pipeline_plan(mhla_pipeline *pipeline, mhla_component component, mhla_component_plan *plan,
                                        const mhla_make_desc *desc);

/* A record of how images were generated, as one JSON object for mhla_picture.text: all of desc, and the components. columns: of the grid.
 * Free it with free(). MHLA_EDATA for a prompt that is not UTF-8, MHLA_EINVAL for such a path. */
MHLA_API mhla_status mhla_made_write(char **text, const mhla_pipeline *pipeline, const mhla_make_desc *desc,
                                     int columns);

/* Reads such a record. MHLA_EDATA if the text is not one (mhla_sample_record_read may read it), or has impossible values. */
typedef struct mhla_made mhla_made;
MHLA_API mhla_status mhla_made_read(mhla_made **made, const char *text, const char *name);
MHLA_API void mhla_made_free(mhla_made *made);
/* What to open and what to generate. Texts and lists live as long as the handle; paths are as they were recorded. */
MHLA_API mhla_status mhla_made_pipeline(const mhla_made *made, mhla_pipeline_desc *desc);
MHLA_API mhla_status mhla_made_desc(const mhla_made *made, mhla_make_desc *desc);
typedef struct mhla_made_info {
    size_t size;
    int columns;
    char weights[65]; /* of mhla_pipeline_info */
    char isa[16], version[32];
    int frame; /* of a clip that was written as single frames: which one, counted from 1; 0: the whole */
} mhla_made_info;
MHLA_API mhla_status mhla_made_query(const mhla_made *made, mhla_made_info *info);

#ifdef __cplusplus
}
#endif
#endif
