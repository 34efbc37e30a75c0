/* mhla eval of a language model: perplexity over texts, by position, by storage type; questions with choices. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <mhla/diffusion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval.h"

enum { STORAGES = EVAL_STORAGES, COMPARED = 256 }; /* tokens whose logits are compared, at most */

/* One storage type: what it holds and what came out. */
typedef struct row {
    char storage[32];
    size_t weight_bytes;
    mhla_perplexity perplexity;
    mhla_choices choices;
    int64_t compared; /* tokens; 0: none */
    double logits_max, logits_rms;
} row;

/* What the first type answers to the first tokens of the text, for the others to be compared with. */
typedef struct answers {
    mhla_ids ids;
    float *logits; /* [ids.count, vocabulary], NULL until they are there */
} answers;

const char *eval_storage(const char *storage, int i) {
    static const char *const all[] = {"float32", "bfloat16", "q8_0"};
    if (storage && strcmp(storage, "all") == 0) return i < STORAGES ? all[i] : NULL;
    return i == 0 ? storage : NULL;
}

mhla_beyond eval_beyond(const eval_options *o) {
    const char *text = o->beyond;
    return text == NULL || strcmp(text, "error") == 0 ? MHLA_BEYOND_ERROR
           : strcmp(text, "clamp") == 0               ? MHLA_BEYOND_CLAMP
                                                      : MHLA_BEYOND_CHUNK;
}

/* What a task is made of; without one, what else was asked. */
static int has_texts(const eval_options *o) {
    mhla_task_info info = {.size = sizeof info};
    return o->task ? mhla_task_query(o->task, &info) == MHLA_OK && info.kind == MHLA_TASK_PAGES : o->files > 0;
}
static int has_questions(const eval_options *o) { return o->task ? !has_texts(o) : o->choices != NULL; }

static mhla_status read_texts(mhla_model *model, row *r, const mhla_documents *documents, const eval_options *o) {
    const int64_t n = documents ? mhla_documents_count(documents) : 0;
    const mhla_progress_fn progress = isatty(STDERR_FILENO) ? eval_progress : NULL;
    const char **texts = malloc((size_t)n * sizeof *texts + 1);
    size_t *bytes = malloc((size_t)n * sizeof *bytes + 1);
    mhla_status status = texts && bytes ? MHLA_OK : MHLA_ENOMEM;
    for (int64_t i = 0; i < n && status == MHLA_OK; i++) texts[i] = mhla_documents_text(documents, i, &bytes[i]);
    const mhla_perplexity_desc desc = {.size = sizeof desc,
                                       .window = o->window,
                                       .bucket = o->bucket,
                                       .beyond = eval_beyond(o),
                                       .limit = o->limit,
                                       .batch = (int)o->batch};
    r->perplexity.size = sizeof r->perplexity;
    if (status == MHLA_OK)
        status = documents
                     ? mhla_lm_perplexity(model, &r->perplexity, texts, bytes, n, &desc, progress, NULL)
                     : mhla_lm_task_pages(model, &r->perplexity, o->task, o->data, o->files, &desc, progress, NULL);
    free(texts);
    free(bytes);
    return status;
}

/* Where a question's result goes. */
typedef struct questions_log {
    FILE *file; /* NULL: nowhere */
    const char *storage;
    int bar;
} questions_log;

static void put_numbers(const char *key, const double *x, int n) {
    json_put_open(key, '[');
    for (int i = 0; i < n; i++) json_put_real(NULL, x[i]);
    json_put_close(']');
}

/* One line of --log-samples. A question without the right answer has no "gold", "acc" and "acc_norm". */
static void log_question(const questions_log *log, const mhla_choice_event *e) {
    eval_samples_begin(log->file);
    json_put_int("question", e->question);
    json_put_text("storage", log->storage);
    if (e->context) json_put_text("context", e->context);
    json_put_open(e->context ? "choices" : "contexts", '[');
    for (int i = 0; i < e->choices; i++) json_put_text(NULL, e->texts[i]);
    json_put_close(']');
    if (e->ending) json_put_text("ending", e->ending);
    put_numbers("loglikelihood", e->loglikelihood, e->choices);
    put_numbers("loglikelihood_norm", e->normalised, e->choices);
    json_put_open("greedy", '[');
    for (int i = 0; i < e->choices; i++) json_put_bool(NULL, e->greedy[i]);
    json_put_close(']');
    json_put_int("prediction", e->best);
    json_put_int("prediction_norm", e->best_normalised);
    if (e->gold >= 0) {
        json_put_int("gold", e->gold);
        json_put_int("acc", e->best == e->gold);
        json_put_int("acc_norm", e->best_normalised == e->gold);
    }
    json_put_close('}');
    json_put_flat(0);
    json_put_to(NULL);
}

/* A FIFO that nobody reads is refused instead of waited for. */
FILE *eval_samples_open(const char *path) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
    FILE *file = fd >= 0 && fcntl(fd, F_SETFL, 0) == 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL && fd >= 0) close(fd);
    return file;
}

void eval_samples_begin(FILE *file) {
    static int emptied;
    if (!emptied) (void)!ftruncate(fileno(file), 0); /* a pipe has nothing to lose */
    emptied = 1;
    json_put_to(file);
    json_put_flat(1);
    json_put_open(NULL, '{');
}

int eval_samples_end(FILE *file) {
    const int bad = ferror(file);
    return fclose(file) != 0 || bad ? (errno ? errno : EIO) : 0;
}

static void take_question(void *user, const mhla_choice_event *event) {
    static double shown;
    const questions_log *log = user;
    if (log->file) log_question(log, event);
    if (!log->bar || now_seconds() - shown < 0.2) return;
    shown = now_seconds();
    fprintf(stderr, "\r%lld questions\033[K", (long long)event->question + 1);
}

static mhla_status first_tokens(mhla_model *model, const mhla_documents *documents, const mhla_lm_info *info,
                                mhla_ids *ids) {
    size_t bytes;
    const char *text = mhla_documents_text(documents, 0, &bytes);
    const mhla_tokenizer *tokenizer = mhla_lm_tokenizer(model);
    if (tokenizer == NULL) return MHLA_EINVAL;
    const mhla_status status = mhla_tokenizer_encode(tokenizer, ids, text, bytes, MHLA_ENCODE_SPECIAL);
    int64_t most = info->context > 0 && info->context < COMPARED ? info->context : COMPARED;
    if (ids->count > most) ids->count = most;
    return status;
}

/* Logits after each of the first tokens: kept, or compared with those that were. */
static mhla_status compare_logits(mhla_model *model, row *r, const mhla_documents *documents, const mhla_lm_info *info,
                                  answers *first) {
    mhla_sequence *sequence = NULL;
    mhla_status status = first->logits ? MHLA_OK : first_tokens(model, documents, info, &first->ids);
    const int64_t n = first->ids.count * info->vocabulary;
    if (status != MHLA_OK || n == 0) return status;
    float *logits = malloc((size_t)n * sizeof *logits);
    status = logits ? mhla_sequence_create(&sequence, model, NULL) : MHLA_ENOMEM;
    if (status == MHLA_OK)
        status = mhla_lm_feed(model,
                              &(mhla_feed){.size = sizeof(mhla_feed),
                                           .sequence = sequence,
                                           .ids = first->ids.data,
                                           .count = first->ids.count,
                                           .all_logits = logits},
                              1);
    mhla_sequence_free(sequence);
    if (status == MHLA_OK && first->logits == NULL) {
        first->logits = logits;
        return MHLA_OK;
    }
    for (int64_t i = 0; i < n && status == MHLA_OK; i++) {
        const double d = fabs((double)logits[i] - (double)first->logits[i]);
        r->logits_rms += d * d;
        if (!(d <= r->logits_max)) r->logits_max = d;
    }
    r->logits_rms = sqrt(r->logits_rms / (double)n);
    r->compared = first->ids.count;
    free(logits);
    return status;
}

/* wanted: the storage type that was asked for, or NULL. first: NULL where logits are not compared. */
static mhla_status evaluate(mhla_model *model, row *r, const char *wanted, const mhla_documents *documents,
                            const eval_options *o, FILE *samples, answers *first) {
    mhla_lm_info info = {.size = sizeof info};
    mhla_status status = mhla_lm_query(model, &info);
    if (status != MHLA_OK) return status;
    const int mixed = wanted && strcmp(info.storage, "mixed") == 0; /* some rows do not fit */
    snprintf(r->storage, sizeof r->storage, "%s", mixed ? wanted : info.storage);
    r->weight_bytes = info.weight_bytes;
    if (has_texts(o)) status = read_texts(model, r, documents, o);
    if (status == MHLA_OK && documents && first) status = compare_logits(model, r, documents, &info, first);
    if (status == MHLA_OK && has_questions(o)) {
        questions_log log = {.file = samples, .storage = r->storage, .bar = mhla_rank() == 0 && isatty(STDERR_FILENO)};
        r->choices.size = sizeof r->choices;
        status = o->task ? mhla_lm_task(model, &r->choices, o->task, o->data, o->files, o->limit, take_question, &log)
                         : mhla_lm_choices(model, &r->choices, o->choices, o->limit, take_question, &log);
        if (log.bar) fprintf(stderr, "\r\033[K");
    }
    return status;
}

/* ---- For people ---- */

static void print_perplexity(const mhla_perplexity *p) {
    char a[32], b[32], c[32], d[32];
    printf("text            %s %s, %s tokens, %s words, %s bytes\n", text_count(a, sizeof a, p->documents),
           p->documents == 1 ? "document" : "documents", text_count(b, sizeof b, p->tokens),
           text_count(c, sizeof c, p->words), text_count(d, sizeof d, p->bytes));
    printf("bits per byte   %.4f\n", p->bits_per_byte);
    printf("perplexity      %.4g per word, %.4f per byte, %.3f per token\n", p->word_perplexity, p->byte_perplexity,
           p->token_perplexity);
    printf("speed           %s tokens/s\n", text_count(a, sizeof a, (int64_t)llround((double)p->tokens / p->seconds)));
}

static void print_positions(const mhla_perplexity *p) {
    printf("\n%16s %10s  bits per token\n", "position", "tokens");
    for (int i = 0; i < p->buckets; i++) {
        char a[32], range[64];
        if (p->bucket_tokens[i] == 0) continue;
        snprintf(range, sizeof range, "%lld-%lld", (long long)(i * p->bucket), (long long)((i + 1) * p->bucket - 1));
        printf("%16s %10s  %.4f\n", range, text_count(a, sizeof a, p->bucket_tokens[i]), p->bucket_bits[i]);
    }
}

/* The harness's standard error of a share: of a sample. */
static double share_error(double share, double n) { return sqrt(share * (1.0 - share) / (n > 1.0 ? n - 1.0 : 1.0)); }

/* The measures of questions, which differ by task. */
typedef struct measure {
    const char *name;
    double value, error;
} measure;

static int measures_of(measure m[2], const mhla_choices *c, const char *task) {
    const double n = (double)c->questions, right = (double)c->right / n, norm = (double)c->right_norm / n;
    mhla_task_info info = {.size = sizeof info, .normalised = 1};
    if (task) (void)mhla_task_query(task, &info); /* it is known */
    if (info.kind == MHLA_TASK_WORD) {
        const double perplexity = exp(-c->loglikelihood / n);
        m[0] = (measure){"perplexity", perplexity, perplexity * c->deviation / sqrt(n)};
        m[1] = (measure){"acc", right, share_error(right, n)};
        return 2;
    }
    m[0] = (measure){"acc", right, share_error(right, n)};
    m[1] = (measure){"acc_norm", norm, share_error(norm, n)};
    return 1 + info.normalised;
}

static void print_choices(const mhla_choices *c, const char *task) {
    measure m[2];
    char a[32];
    printf("questions       %s\n", text_count(a, sizeof a, c->questions));
    const int n = c->questions ? measures_of(m, c, task) : 0;
    for (int i = 0; i < n; i++)
        if (strcmp(m[i].name, "perplexity") == 0)
            printf("%-15s %.4g  (+- %.2g)\n", m[i].name, m[i].value, m[i].error);
        else
            printf("%-15s %.2f %%  (+- %.2f)\n", m[i].name, 100.0 * m[i].value, 100.0 * m[i].error);
}

/* What each storage type costs, beside the first. */
static void print_storages(const row *rows, int n, const eval_options *o) {
    printf("\n%-9s %9s", "dtype", "weights");
    if (has_texts(o))
        printf(" %9s %10s %9s %12s %9s %9s", "bits/byte", "ppl/token", "cost", "logits, max", "rms", "tokens/s");
    measure m[2] = {{NULL, 0.0, 0.0}};
    const int measures = has_questions(o) && rows[0].choices.questions ? measures_of(m, &rows[0].choices, o->task) : 0;
    for (int i = 0; i < measures; i++) printf(" %10s", m[i].name);
    printf("\n");
    for (int i = 0; i < n; i++) {
        char a[32], b[32];
        const mhla_perplexity *p = &rows[i].perplexity;
        const mhla_choices *c = &rows[i].choices;
        printf("%-9s %9s", rows[i].storage, text_bytes(a, sizeof a, (double)rows[i].weight_bytes));
        if (has_texts(o)) {
            printf(" %9.4f %10.3f ", p->bits_per_byte, p->token_perplexity);
            if (i)
                printf("%+7.3f %%", 100.0 * (p->token_perplexity / rows[0].perplexity.token_perplexity - 1.0));
            else
                printf("%9s", "-");
            if (rows[i].compared)
                printf(" %12.3g %9.3g", rows[i].logits_max, rows[i].logits_rms);
            else
                printf(" %12s %9s", "-", "-");
            printf(" %9s", text_count(b, sizeof b, (int64_t)llround((double)p->tokens / p->seconds)));
        }
        if (measures) measures_of(m, c, o->task);
        for (int k = 0; k < measures; k++)
            if (strcmp(m[k].name, "perplexity") == 0)
                printf(" %10.4g", m[k].value);
            else
                printf(" %8.2f %%", 100.0 * m[k].value);
        printf("\n");
    }
    if (!has_texts(o)) return;
    printf("\ncost: more perplexity per token than %s", rows[0].storage);
    if (rows[n - 1].compared)
        printf("; logits: differences from its logits after the first %lld tokens", (long long)rows[n - 1].compared);
    printf("\n");
}

static void print_text(const mhla_lm_info *info, const char *name, const row *rows, int n, const eval_options *o) {
    char a[32];
    printf("model           %s: %s, %s parameters, %s\n", name, info->attention,
           text_count(a, sizeof a, info->parameters), n == 1 ? rows[0].storage : "type by type");
    if (o->task) printf("task            %s\n", o->task);
    if (has_texts(o)) print_perplexity(&rows[0].perplexity);
    if (has_questions(o)) print_choices(&rows[0].choices, o->task);
    if (has_texts(o) && o->by_position) print_positions(&rows[0].perplexity);
    if (n > 1) print_storages(rows, n, o);
}

/* ---- For programs ---- */

static void put_perplexity(const mhla_perplexity *p) {
    json_put_int("documents", p->documents);
    json_put_int("tokens", p->tokens);
    json_put_int("words", p->words);
    json_put_int("bytes", p->bytes);
    json_put_real("loglikelihood", p->loglikelihood);
    json_put_real("bits_per_byte", p->bits_per_byte);
    json_put_real("word_perplexity", p->word_perplexity);
    json_put_real("byte_perplexity", p->byte_perplexity);
    json_put_real("token_perplexity", p->token_perplexity);
    json_put_real("tokens_per_second", (double)p->tokens / p->seconds);
    json_put_open("positions", '[');
    for (int i = 0; i < p->buckets; i++) {
        if (p->bucket_tokens[i] == 0) continue;
        json_put_open(NULL, '{');
        json_put_int("from", i * p->bucket);
        json_put_int("tokens", p->bucket_tokens[i]);
        json_put_real("bits_per_token", p->bucket_bits[i]);
        json_put_close('}');
    }
    json_put_close(']');
}

static void put_choices(const mhla_choices *c, const char *task) {
    measure m[2];
    const int n = measures_of(m, c, task);
    json_put_int("questions", c->questions);
    for (int i = 0; i < n; i++) {
        char key[32];
        json_put_real(m[i].name, m[i].value);
        snprintf(key, sizeof key, "%s_stderr", m[i].name);
        json_put_real(key, m[i].error);
    }
}

static void print_json(const mhla_lm_info *info, const char *name, const row *rows, int n, const eval_options *o) {
    json_put_open(NULL, '{');
    json_put_text("model", name);
    json_put_text("attention", info->attention);
    json_put_int("parameters", info->parameters);
    if (o->task) json_put_text("task", o->task);
    json_put_open("results", '[');
    for (int i = 0; i < n; i++) {
        json_put_open(NULL, '{');
        json_put_text("storage", rows[i].storage);
        json_put_int("weight_bytes", (int64_t)rows[i].weight_bytes);
        if (has_texts(o)) put_perplexity(&rows[i].perplexity);
        if (has_questions(o)) put_choices(&rows[i].choices, o->task);
        if (rows[i].compared) {
            json_put_int("logits_tokens", rows[i].compared);
            json_put_real("logits_max", rows[i].logits_max);
            json_put_real("logits_rms", rows[i].logits_rms);
        }
        json_put_close('}');
    }
    json_put_close(']');
    json_put_close('}');
}

/* ---- The verb ---- */

/* What does not go together; NULL if all does. */
static const char *what_is_wrong(const eval_options *o) {
    const int asked = (o->choices != NULL) + (o->task != NULL) + (o->longbench != NULL) + o->needle;
    if (asked > 1) return "--choices, --task, --longbench and --needle: one of them";
    if (o->samples && !o->choices && !o->task && !o->longbench)
        return "--log-samples is for --choices, --task and --longbench";
    if (!o->needle && (o->lengths || o->depths || o->repeats || o->seed || o->out))
        return "--lengths, --depths, --samples, --seed and --out are for --needle";
    if (!o->longbench && o->max_tokens) return "--context is for --longbench";
    if ((o->needle || o->longbench) && o->files) return "--needle and --longbench take no DATA";
    if ((o->needle || o->longbench) && eval_storage(o->storage, 1)) return "--dtype all is for texts and questions";
    if (o->task && o->files == 0) return "--task needs its files after MODEL";
    if (o->files == 0 && asked == 0) return "a language model needs --data, --choices, --task, --longbench or --needle";
    if (o->beyond && strcmp(o->beyond, "error") != 0 && strcmp(o->beyond, "clamp") != 0 &&
        strcmp(o->beyond, "chunk") != 0)
        return "--beyond: expected error, clamp or chunk";
    return NULL;
}

mhla_status eval_print_model(const mhla_model *model, int json) {
    mhla_lm_info info = {.size = sizeof info};
    mhla_model_info about = {.size = sizeof about};
    char a[32];
    mhla_status status = mhla_lm_query(model, &info);
    if (status == MHLA_OK) status = mhla_model_query(model, &about);
    if (status != MHLA_OK) return status;
    if (json) {
        json_put_open(NULL, '{');
        json_put_text("model", about.name);
        json_put_text("attention", info.attention);
        json_put_int("parameters", info.parameters);
        json_put_text("storage", info.storage);
    } else
        printf("model           %s: %s, %s parameters, %s\n", about.name, info.attention,
               text_count(a, sizeof a, info.parameters), info.storage);
    return MHLA_OK;
}

/* Several ranks answer for one model. */
static mhla_status same_model(const mhla_model *model) {
    char hash[65] = "";
    if (mhla_ranks() == 1) return MHLA_OK;
    const mhla_status status = mhla_ranks_agree(mhla_model_hash(model, hash));
    return status == MHLA_OK ? mhla_ranks_same("SHA-256 of the model", hash) : status;
}

int eval_language(mhla_model *model, const eval_options *o) {
    row rows[STORAGES] = {{.storage = ""}};
    mhla_documents *documents = NULL;
    mhla_lm_info info = {.size = sizeof info};
    mhla_model_info about = {.size = sizeof about};
    char name[64] = "", attention[64] = "";
    const char *wrong = what_is_wrong(o);
    mhla_task_info task = {.size = sizeof task};
    answers first = {.logits = NULL};
    const int several = eval_storage(o->storage, 1) != NULL;
    int n = 0;
    if (wrong == NULL && o->task && mhla_task_query(o->task, &task) != MHLA_OK) wrong = mhla_message();
    if (wrong) {
        mhla_model_free(model);
        return cli_wrong("eval", "%s", wrong);
    }
    if (o->longbench && mhla_ranks() > 1) {
        mhla_model_free(model);
        return cli_wrong("eval", "--longbench runs in one process, %d were started", mhla_ranks());
    }
    const mhla_status same = same_model(model);
    if (same != MHLA_OK) {
        mhla_model_free(model);
        return cli_failed("eval", same);
    }
    if (o->longbench || o->needle) {
        n = o->needle ? eval_needle(model, o) : eval_longbench(model, o);
        mhla_model_free(model);
        return n;
    }
    mhla_status status = mhla_lm_query(model, &info);
    if (status == MHLA_OK) status = mhla_model_query(model, &about);
    if (status == MHLA_OK) { /* the texts live as long as the first model */
        snprintf(name, sizeof name, "%s", about.name);
        snprintf(attention, sizeof attention, "%s", info.attention);
        info.attention = attention;
    }
    if (status == MHLA_OK && o->files && !o->task) status = mhla_documents_open(&documents, o->data, o->files);
    if (documents && mhla_documents_count(documents) == 0) {
        fprintf(stderr, "mhla eval: %s: no text in it\n", o->files == 1 ? o->data[0] : "all of --data");
        mhla_documents_free(documents);
        mhla_model_free(model);
        return CLI_FAILED;
    }
    const int logs = o->samples && mhla_rank() == 0 && status == MHLA_OK;
    FILE *samples = logs ? eval_samples_open(o->samples) : NULL;
    int unwritten = logs && samples == NULL ? errno : 0;
    while (status == MHLA_OK && !unwritten) {
        status = evaluate(model, &rows[n], eval_storage(o->storage, n), documents, o, samples, several ? &first : NULL);
        n++;
        mhla_model_free(model);
        model = NULL;
        const char *next = status == MHLA_OK ? eval_storage(o->storage, n) : NULL;
        if (next == NULL) break;
        status = mhla_model_open_as(
            &model, model_path(o->path),
            &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = next, .weights = o->weights});
        if (status == MHLA_OK) mhla_model_set_context(model, o->context);
    }
    if (samples) unwritten = eval_samples_end(samples);
    if (unwritten) fprintf(stderr, "mhla eval: %s: cannot be written: %s\n", o->samples, strerror(unwritten));
    if (status == MHLA_OK && !unwritten) (o->json ? print_json : print_text)(&info, name, rows, n, o);
    for (int i = 0; i < n; i++) mhla_perplexity_free(&rows[i].perplexity);
    mhla_documents_free(documents);
    mhla_model_free(model);
    mhla_ids_free(&first.ids);
    free(first.logits);
    if (status != MHLA_OK) return cli_failed("eval", status);
    return unwritten ? CLI_FAILED : CLI_OK;
}
