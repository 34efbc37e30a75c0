/* diffusion.h - image generation: samplers, sampling with a model, and measures of generated images. On top of nn.h.
 *
 *   1. samplers: from noise to data with your own network
 *   2. images from a model, and image files
 *   3. measures: the distance between two sets of images
 *   4. latents: autoencoders
 *   5. captions: rows of text for training
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
    /* For a model that takes text (mhla_model_info.text_width): rows [texts,longest,text_width], for example of mhla_text_encode, of
     * which the first lengths [texts] of each text count (NULL: all). Image i is of text classes[i]. Guidance leads away from text
     * `negative`: let it be the empty one. Models of classes have none of these. */
    const float *rows;
    const int32_t *lengths;
    int64_t texts, longest;
    int negative;
    /* A file that is written after every step, whole or not at all. If it is there, sampling goes on from it and gives the same images to
     * the last bit; MHLA_EINVAL if it is of other images. The caller removes it in the end. NULL: none. */
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

/* Pixels of 8 bits, 1 grey or 3 RGB, [height,width,channels]. Start with {.size = sizeof}. */
typedef struct mhla_picture {
    size_t size;
    int width, height, channels;
    uint8_t *pixels; /* this and text: freed by mhla_picture_free */
    char *text;      /* stored in the file under the keyword "mhla", or NULL */
} mhla_picture;

/* Makes one picture of images [n,channels,height,width], `columns` in a row with white gaps. A value x becomes
 * clamp(x/2 + 0.5, 0, 1) * 255, rounded. MHLA_EINVAL if there are not 1 or 3 channels: latents are not pixels. */
MHLA_API mhla_status mhla_picture_tile(mhla_picture *picture, const float *images, int64_t n, int channels, int height,
                                       int width, int columns);
/* Writes a PNG, or, if the path ends with .webp, a WebP of quality 90, whole or not at all. WebP needs libwebp.so.7. Several frames of one size make an endless animation that shows frame i for seconds[i].
 * Programs without animations show the last frame. The text is that of the last frame. */
MHLA_API mhla_status mhla_picture_write(const char *path, const mhla_picture *frames, int64_t count,
                                        const double *seconds);
/* Writes pictures of one size and 1 or 3 channels as a video without compression (YUV4MPEG2, .y4m), for programs that compress it; each is
 * shown for `seconds`. "-" is standard output. */
MHLA_API mhla_status mhla_video_write(const char *path, const mhla_picture *frames, int64_t count, double seconds);
/* Reads a PNG or JPEG, of an animation the default image; of a WebP the last frame. */
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
 * An autoencoder (Stable Diffusion's, AutoencoderKL; SANA's, AutoencoderDC; of clips, Wan's, AutoencoderKLWan) makes latents of pixels,
 * which a diffusion then models, and pixels of latents. Latents here are as a diffusion sees them: (z - shift) * scale of what the network makes, or
 * (z - mean) / deviation, channel by channel.
 *
 * An autoencoder of clips makes 1 + n frames of latents of 1 + n * frames frames of pixels. An image is a clip of one frame. */

typedef struct mhla_codec_info {
    size_t size;
    int channels, outputs, latents; /* of images that are encoded, that are decoded, of latents */
    int factor;                     /* pixels of a side per latent */
    double scale, shift;
    int encodes, decodes;          /* a file may have one half only */
    int frames;                    /* of pixels per frame of latents behind the first; 0: images alone */
    const float *mean, *deviation; /* [latents], as long as the model lives; NULL: scale and shift */
} mhla_codec_info;

/* MHLA_EINVAL for a model that is no autoencoder. */
MHLA_API mhla_status mhla_codec_query(const mhla_model *model, mhla_codec_info *info);

typedef struct mhla_coding {
    size_t size;
    int height, width; /* of the images, pixels: multiples of the factor; both 0: as in training */
    size_t memory;     /* bytes that the network and its work may take; 0: as many as a whole image needs */
    int tile; /* side of a tile, pixels; 0: the largest that memory allows. Tiles overlap by a quarter and are blended;
                          norms and attention see one tile, so that the result is not quite that of the whole image */
    mhla_progress_fn progress; /* tiles done, of how many; may be NULL */
    void *user;
    /* Written by mhla_coding_settle: */
    size_t peak;           /* bytes of the network and its work */
    int tiles;             /* of an image; 1: it goes through whole */
    int64_t multiply_adds; /* of an image */
    /* The caller's again: of the clips, pixels' frames, 1 and a multiple of the autoencoder's more; 0: 1. A clip goes through frame by
     * frame with exactly the result of the whole. An autoencoder of images takes any number, each frame as an image of its own:
     * clips and latents are [n,channels,frames,height,width], with as many frames of latents. */
    int frames;
} mhla_coding;

/* Checks all of coding and writes what its zeros stand for; nothing is computed. MHLA_ENOMEM where not even the smallest tile fits. */
MHLA_API mhla_status mhla_coding_settle(mhla_model *model, mhla_coding *coding, int decode);
/* mean, deviation [n,latents,height/factor,width/factor] of images [n,channels,height,width], values -1..1: a latent is mean +
 * deviation * noise; an AutoencoderDC has deviations of 0. deviation may be NULL. Of clips: [n,latents,frames of latents,...] of [n,channels,frames,...]. */
MHLA_API mhla_status mhla_model_encode(mhla_model *model, float *mean, float *deviation, const float *images, int64_t n,
                                       const mhla_coding *coding);
/* images [n,outputs,height,width], not clipped, of latents [n,latents,height/factor,width/factor]; clips with their frames in front of
 * the height, both. */
MHLA_API mhla_status mhla_model_decode(mhla_model *model, float *images, const float *latents, int64_t n,
                                       const mhla_coding *coding);

typedef struct mhla_latents_desc {
    size_t size;
    const char *source, *out; /* a dataset of images; the folder that gets the latents */
    int height, width;        /* images get this size, the shorter side first, then the centre: multiples of the factor;
                                   both 0: as in the autoencoder's training */
    mhla_progress_fn progress; /* images done, of how many; may be NULL */
    void *user;
} mhla_latents_desc;

typedef struct mhla_latents_made {
    size_t size;
    int64_t train, test, unreadable, kept; /* images of both parts; of all: without a latent, there before */
    int channels, height, width;           /* of a latent */
} mhla_latents_made;

/* Encodes all images of a dataset once, as they are and flipped, for training a diffusion model on their latents: mhla_trainer_*
 * takes the folder as data. Killed at any moment, the same call again makes what is missing. MHLA_EINVAL for a folder with
 * other files, or with latents of other images, of another size or by another autoencoder. made may be NULL. */
MHLA_API mhla_status mhla_latents_make(mhla_model *vae, const mhla_latents_desc *desc, mhla_latents_made *made);

/* ---- 5. Captions -------------------------------------------------------------------------------------------------
 *
 * A text-to-image model is trained on pictures and rows of text, which a frozen text encoder makes of their captions once. */

typedef struct mhla_captions_desc {
    size_t size;
    const char *source,
        *out; /* a dataset of images with captions, or a text file, a text in each line; the folder that gets the rows */
    const char *instruction; /* this and the next: see mhla_encoder_desc in lm.h */
    int64_t longest;
    mhla_progress_fn progress; /* texts done, of how many; may be NULL */
    void *user;
} mhla_captions_desc;

typedef struct mhla_captions_made {
    size_t size;
    int64_t train, test, kept; /* captions of both parts; of all texts: there before */
    int64_t longest;           /* rows of the longest */
    int width;                 /* of a row */
    int64_t cut;               /* texts of this call that lost their end */
} mhla_captions_made;

/* Encodes the caption of every image of a dataset, and the empty text, for training a model that takes text: mhla_trainer_* takes the
 * folder as data.captions. Killed at any moment, the same call again makes what is missing, with the same bytes. MHLA_EINVAL for a
 * folder with other files, or with rows by another encoder; MHLA_EDATA names the caption that has changed since. made may be NULL. */
MHLA_API mhla_status mhla_captions_make(mhla_model *encoder, const mhla_captions_desc *desc, mhla_captions_made *made);

/* ---- 6. Pipelines -----------------------------------------------------------------------------------------------
 *
 * A pipeline is a folder of components as diffusers writes it: a text encoder with its tokenizer, a transformer (a diffusion model that
 * takes text), the settings of a scheduler and an autoencoder, listed in model_index.json. Each component is opened, used and released in
 * turn, so that the largest decides how much memory a run takes.
 *
 *   mhla_pipeline_open(&p, &(mhla_pipeline_desc){.size = sizeof(mhla_pipeline_desc), .folder = "Sana_600M_512px_diffusers"});
 *   mhla_make_desc d = {.size = sizeof d, .images = 1, .prompts = &prompt, .seeds = &seed};
 *   mhla_pipeline_settle(p, &d);                                        // height, width, frames, steps, ...
 *   mhla_pipeline_make(p, pixels, &d, NULL); */

typedef struct mhla_pipeline mhla_pipeline;

typedef struct mhla_pipeline_desc {
    size_t size;
    const char *folder; /* with model_index.json; NULL: at least transformer, vae and text_encoder are named */
    /* Instead of the folder's: models as for mhla_model_open (a text encoder may be a GGUF file), a tokenizer as for mhla_tokenizer_open,
     * a scheduler_config.json. */
    const char *transformer, *vae, *text_encoder, *tokenizer, *scheduler;
    const char *storage; /* "float32" or "bfloat16"; NULL: float32, and of the text encoder the type of its file */
    const char
        *texts; /* a folder that keeps the rows of every prompt, so that the encoder is not needed again; NULL: none */
    const mhla_context *context; /* must outlive the pipeline */
} mhla_pipeline_desc;

typedef struct mhla_pipeline_info {
    size_t size;
    const char *name; /* "SanaPipeline"; this and other texts live as long as the pipeline */
    const char *transformer, *vae, *text_encoder,
        *tokenizer;       /* where they are; tokenizer NULL: the text encoder's own */
    const char *negative; /* the negative prompt unless another one is given */
    char weights[65];     /* tells the components' weights from others': some bytes of each tensor, hashed */
    int clips;            /* 1: it makes clips */
    int outputs;          /* channels of pixels */
    int factor;           /* height and width are multiples of it */
    int frames;           /* frames are 1 and a multiple of it more; 0: images */
    double seconds;       /* that a frame of a clip is shown */
} mhla_pipeline_info;

/* 1 if the folder has a model_index.json, or the files of a pipeline as its authors publish them; else 0. */
MHLA_API int mhla_pipeline_is(const char *folder);
/* Looks at all components and checks that they fit together; no weights are read. */
MHLA_API mhla_status mhla_pipeline_open(mhla_pipeline **pipeline, const mhla_pipeline_desc *desc);
MHLA_API void mhla_pipeline_free(mhla_pipeline *pipeline);
MHLA_API mhla_status mhla_pipeline_query(const mhla_pipeline *pipeline, mhla_pipeline_info *info);

typedef enum mhla_component { MHLA_TEXT_ENCODER, MHLA_TRANSFORMER, MHLA_VAE, MHLA_COMPONENTS } mhla_component;

/* What is reported while a pipeline works. One of note, pixels and neither is new. */
typedef struct mhla_make_state {
    size_t size;
    mhla_component component; /* at work */
    int64_t done, all;        /* of its work: texts; steps, over all images; images, or tiles of them */
    int step, steps;          /* transformer: of the images under way */
    const char *note;         /* a sentence for the user, or NULL */
    int64_t image;            /* pixels: which one; also of a preview */
    const float *pixels;      /* [outputs,(frames,)height,width] of an image that is ready, or of a preview; or NULL */
    int preview; /* 1: pixels [outputs,height,width] are what the image, or the first frame of the clip, may become */
    const float *latents; /* transformer: the latents under way, or NULL */
} mhla_make_state;
typedef int (*mhla_make_fn)(void *user, const mhla_make_state *state); /* nonzero stops */

typedef struct mhla_make_desc {
    size_t size;
    int64_t images;
    const char *const *prompts; /* [images] */
    const char *negative;       /* what guidance leads away from; NULL: the pipeline's own */
    const uint64_t *seeds;      /* [images]: an image depends on its prompt, its seed and the settings below */
    const char *instruction;    /* in front of prompts, for the text encoder; NULL: the pipeline's own, "": none */
    int64_t rows;               /* of a text, at most; 0: as many as the pipeline takes */
    double guidance;            /* this and the next three, 0 or NULL: as the pipeline does; guidance 1: none */
    const char *method;         /* "euler", "dpm++", "unipc" */
    int steps;
    double shift;
    int height, width, frames; /* pixels; 0: as in training */
    /* SANA was trained on some sizes: the nearest shape is made, then resized and cropped to height and width. 1: exactly those are made. */
    int exact;
    int batch;         /* images that the transformer takes at once; does not change the result by a bit */
    size_t memory;     /* that decoding may take, see mhla_coding */
    int preview;       /* every so many steps one image under way is decoded; 0: none */
    const char *state; /* a file that is written after every step: see mhla_sample_desc */
    mhla_make_fn report;
    void *user;
    const float *start; /* [images,latents,...]: initial noise, NULL: drawn from the seeds */
    /* Written by mhla_pipeline_settle: what is made before it is resized; how it is decoded: 1 whole, exactly; else in so many tiles of a
     * side of `tile` pixels, which overlap and are blended. */
    int made_height, made_width;
    int tiles, tile;
} mhla_make_desc;

/* Checks desc and replaces its zeros by what they stand for. MHLA_EINVAL names the setting. */
MHLA_API mhla_status mhla_pipeline_settle(mhla_pipeline *pipeline, mhla_make_desc *desc);

/* Pixels [images,outputs,(frames,)height,width], about -1..1; NULL if report takes them. */
MHLA_API mhla_status mhla_pipeline_make(mhla_pipeline *pipeline, float *pixels, const mhla_make_desc *desc,
                                        int *stopped);

/* What a component will take, without its weights being read. */
typedef struct mhla_component_plan {
    size_t size;
    size_t weights, work; /* bytes */
    double multiply_adds; /* of all images */
    int64_t parameters;
} mhla_component_plan;
MHLA_API mhla_status mhla_pipeline_plan(mhla_pipeline *pipeline, mhla_component component, mhla_component_plan *plan,
                                        const mhla_make_desc *desc);

/* How images were made, as one JSON object for mhla_picture.text: everything of desc, and the components. columns: of the grid. free() it.
 * MHLA_EDATA for a prompt that is no UTF-8, MHLA_EINVAL for such a path. */
MHLA_API mhla_status mhla_made_write(char **text, const mhla_pipeline *pipeline, const mhla_make_desc *desc,
                                     int columns);

/* That text, read again. MHLA_EDATA: not such a text (mhla_sample_record_read may read it), or impossible values. */
typedef struct mhla_made mhla_made;
MHLA_API mhla_status mhla_made_read(mhla_made **made, const char *text, const char *name);
MHLA_API void mhla_made_free(mhla_made *made);
/* What to open and what to make. Texts and lists live as long as the handle; paths are those of then. */
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
