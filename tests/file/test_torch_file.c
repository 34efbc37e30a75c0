/* PyTorch checkpoints, made here by hand as torch.save makes them: both formats, strided tensors, wrapped dictionaries;
 * everything that a pickle could do besides is refused; truncations and flipped bits. */
#include <sys/stat.h>
#include <zlib.h>

#include "file/safetensors.h"
#include "files.h"

/* ---- Bytes in the making ---- */

typedef struct bytes {
    unsigned char data[16384];
    size_t size;
} bytes;

static void add(bytes *b, const void *from, size_t n) {
    assert_true(b->size + n <= sizeof b->data);
    memcpy(b->data + b->size, from, n);
    b->size += n;
}
static void add_int(bytes *b, uint64_t x, int n) {
    for (int i = 0; i < n; i++) add(b, &(unsigned char){i < 8 ? (unsigned char)(x >> (8 * i)) : 0}, 1);
}
static void add_text(bytes *b, const char *text) { add(b, text, strlen(text)); }

/* Opcodes as a string in which "[text]" is a unicode text and "<module name>" a global; all else is taken literally,
 * numbers 0..9 as BININT1 after '#'. */
static void add_pickle(bytes *b, const char *script) {
    add(b, "\x80\2", 2);
    for (const char *c = script; *c; c++) {
        if (*c == '[') {
            const char *end = strchr(c, ']');
            add(b, "X", 1);
            add_int(b, (uint64_t)(end - c - 1), 4);
            add(b, c + 1, (size_t)(end - c - 1));
            c = end;
        } else if (*c == '<') {
            const char *space = strchr(c, ' '), *end = strchr(c, '>');
            add(b, "c", 1);
            add(b, c + 1, (size_t)(space - c - 1));
            add(b, "\n", 1);
            add(b, space + 1, (size_t)(end - space - 1));
            add(b, "\n", 1);
            c = end;
        } else if (*c == '#') {
            const unsigned char digit[] = {'K', (unsigned char)(*++c - '0')};
            add(b, digit, 2);
        } else if (*c == '_') { /* two-byte names of opcodes: _1 TUPLE1, ..., _N NEWOBJ, _T, _F, _G STACK_GLOBAL */
            static const char names[] = "123NTFG", codes[] = "\x85\x86\x87\x81\x88\x89\x93";
            add(b, &codes[strchr(names, *++c) - names], 1);
        } else {
            add(b, c, 1);
        }
    }
}

/* [name] -> a tensor of storage `key` with the rest of the call */
#define STORAGE(class, key, count) "([storage]<torch " class ">[" key "][cpu]" count "tQ"
#define TENSOR(storage, rest) "<torch._utils _rebuild_tensor_v2>(" storage rest "_F<collections OrderedDict>)RtR"
#define W TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(#2#3t(#3#1t")
#define T TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(#3#2t(#1#3t") /* its transpose */
#define L TENSOR(STORAGE("LongStorage", "1", "#2"), "#1_1(#1t(#1t")    /* wrong offset: a tuple */
#define I TENSOR(STORAGE("LongStorage", "1", "#2"), "#1(#1t(#1t")      /* the second of two */

typedef struct entry {
    const char *name;
    const void *data;
    size_t size;
} entry;

/* A zip archive of stored entries, with 64-bit sizes in one of them if `wide`. */
static void add_zip(bytes *b, const entry *entries, int count, int wide, int method) {
    size_t offsets[8];
    for (int i = 0; i < count; i++) {
        const entry *e = &entries[i];
        offsets[i] = b->size;
        add(b, "PK\3\4", 4);
        add_int(b, 0, 22);
        add_int(b, strlen(e->name), 2);
        add_int(b, 4, 2); /* an extra field of padding */
        add_text(b, e->name);
        add(b, "FB\0\0", 4);
        add(b, e->data, e->size);
    }
    const size_t begin = b->size;
    for (int i = 0; i < count; i++) {
        const entry *e = &entries[i];
        const uint32_t crc = (uint32_t)crc32(0, e->data, (uInt)e->size);
        add(b, "PK\1\2", 4);
        add_int(b, 0, 6);
        add_int(b, (uint64_t)method, 2);
        add_int(b, 0, 4);
        add_int(b, crc, 4);
        add_int(b, wide ? 0xffffffffu : e->size, 4);
        add_int(b, wide ? 0xffffffffu : e->size, 4);
        add_int(b, strlen(e->name), 2);
        add_int(b, wide ? 20 : 0, 2);
        add_int(b, 0, 10);
        add_int(b, offsets[i], 4);
        add_text(b, e->name);
        if (wide) {
            add_int(b, 1, 2);
            add_int(b, 16, 2);
            add_int(b, e->size, 8);
            add_int(b, e->size, 8);
        }
    }
    const size_t length = b->size - begin, end64 = b->size;
    if (wide) {
        add(b, "PK\6\6", 4);
        add_int(b, 44, 8);
        add_int(b, 0, 12);
        add_int(b, (uint64_t)count, 8);
        add_int(b, (uint64_t)count, 8);
        add_int(b, length, 8);
        add_int(b, begin, 8);
        add(b, "PK\6\7", 4);
        add_int(b, 0, 4);
        add_int(b, end64, 8);
        add_int(b, 1, 4);
    }
    add(b, "PK\5\6", 4);
    add_int(b, 0, 4);
    add_int(b, wide ? 0xffff : (uint64_t)count, 2);
    add_int(b, wide ? 0xffff : (uint64_t)count, 2);
    add_int(b, wide ? 0xffffffffu : length, 4);
    add_int(b, wide ? 0xffffffffu : begin, 4);
    add_int(b, 0, 2);
}

static const float six[] = {1, 2, 3, 4, 5, 6};
static const int64_t two[] = {7, 8};

static bytes zip_of(const char *script, int wide) {
    static bytes pickle;
    bytes b = {.size = 0};
    pickle.size = 0;
    add_pickle(&pickle, script);
    const entry entries[] = {{"x/data.pkl", pickle.data, pickle.size},
                             {"x/byteorder", "little", 6},
                             {"x/data/0", six, sizeof six},
                             {"x/data/1", two, sizeof two}};
    add_zip(&b, entries, 4, wide, 0);
    return b;
}

/* The older format, in which the storages that follow are those of the dictionary. */
static bytes legacy_of(const char *script) {
    const int zero = strstr(script, "[0][cpu]") != NULL, one = strstr(script, "[1][cpu]") != NULL;
    bytes b = {.size = 0};
    add(&b, "\x80\2\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 15);
    add(&b, "\x80\2M\xe9\3.", 6);
    add_pickle(&b, "}([little_endian]_Tu.");
    add_pickle(&b, script);
    add_pickle(&b, zero && one ? "]([0][1]e." : zero ? "][0]a." : one ? "][1]a." : "].");
    if (zero) {
        add_int(&b, 6, 8);
        add(&b, six, sizeof six);
    }
    if (one) {
        add_int(&b, 2, 8);
        add(&b, two, sizeof two);
    }
    return b;
}

/* In memory of exactly its size. */
static mhla_status open_copy(mhla_safetensors **f, const unsigned char *data, size_t size, unsigned char **copy) {
    *copy = new_bytes(size);
    memcpy(*copy, data, size);
    return mhla_safetensors_open_bytes(f, *copy, size, "x.pth");
}

static void check(const bytes *b) {
    mhla_safetensors *f;
    unsigned char *copy;
    if (open_copy(&f, b->data, b->size, &copy) != MHLA_OK) fail_msg("%s", mhla_message());
    assert_int_equal(mhla_safetensors_count(f), 3);
    float x[6];
    assert_int_equal(mhla_safetensors_load(x, f, "w", 2, (const int64_t[]){2, 3}), MHLA_OK);
    assert_memory_equal(x, six, sizeof six);
    assert_int_equal(mhla_safetensors_load(x, f, "t", 2, (const int64_t[]){3, 2}), MHLA_OK);
    static const float transposed[] = {1, 4, 2, 5, 3, 6};
    assert_memory_equal(x, transposed, sizeof transposed);
    const mhla_stored *i = mhla_safetensors_find(f, "i");
    assert_non_null(i);
    assert_int_equal(i->dtype, MHLA_IO_I64);
    assert_memory_equal(i->data, &two[1], 8);
    mhla_safetensors_close(f);
    free(copy);
}

#define STATE "}([w]" W "[t]" T "[i]" I "u"
#define ORDERED "<collections OrderedDict>)R([w]" W "[t]" T "[i]" I "[n]#3u}[_metadata]#1sb"
#define WRAPPED                                                                                                        \
    "}([epoch]#3[args]<argparse Namespace>)_N}[a]#1sb[model]}([module.w]" W "[module.t]" T "[module.i]" I "u[lr]Nu"
#define AVERAGE "}([model]}[w]" T "s[ema]" STATE "u" /* what DiT's training leaves: its samples are of the average */
#define SHADOW "}([ema]}[decay]#3s[model]" STATE "u"
#define PARAMETER "}([w]<torch._utils _rebuild_parameter>" W "_T<collections OrderedDict>)R_3R[t]" T "[i]" I "u"

static void both_formats(void **state) {
    (void)state;
    static const char *const scripts[] = {STATE ".", ORDERED ".", WRAPPED ".", PARAMETER ".", AVERAGE ".", SHADOW "."};
    for (int i = 0; i < 6; i++) {
        bytes b = zip_of(scripts[i], 0);
        check(&b);
        b = zip_of(scripts[i], 1);
        check(&b);
        b = legacy_of(scripts[i]);
        check(&b);
    }
    bytes b = zip_of(STATE ".", 0);
    const char *path = in_folder("x.pth");
    write_file(path, b.data, b.size);
    mhla_safetensors *f;
    assert_int_equal(mhla_safetensors_open(&f, path), MHLA_OK);
    mhla_safetensors_close(f);
    /* as Hugging Face names it in a folder; in several files with an index, too; safetensors come first */
    char hf[300], inside[400];
    snprintf(hf, sizeof hf, "%s", in_folder("hf"));
    assert_int_equal(mkdir(hf, 0777), 0);
    static const char index[] = "{\"weight_map\": {\"w\": \"pytorch_model-1.bin\", \"t\": \"pytorch_model-1.bin\"}}";
    const struct {
        const char *name;
        const void *data;
        size_t size;
        int64_t tensors;
    } files[] = {{"pytorch_model-1.bin", b.data, b.size, 0},
                 {"pytorch_model.bin.index.json", index, sizeof index - 1, 2},
                 {"pytorch_model.bin", b.data, b.size, 3},
                 {"model.safetensors", "\2\0\0\0\0\0\0\0{}", 10, 0}};
    for (int i = 0; i < 4; i++) {
        snprintf(inside, sizeof inside, "%s/%s", hf, files[i].name);
        write_file(inside, files[i].data, files[i].size);
        const mhla_status status = mhla_safetensors_open(&f, hf);
        if (i == 0) {
            assert_int_equal(status, MHLA_EIO);
            continue;
        }
        if (status != MHLA_OK) fail_msg("%s: %s", files[i].name, mhla_message());
        assert_int_equal(mhla_safetensors_count(f), files[i].tensors);
        mhla_safetensors_close(f);
    }
}

static void bad(const char *script, const char *word) {
    mhla_safetensors *f;
    unsigned char *copy;
    for (int legacy = 0; legacy < 2; legacy++) {
        const bytes b = legacy ? legacy_of(script) : zip_of(script, 0);
        if (open_copy(&f, b.data, b.size, &copy) == MHLA_OK) fail_msg("accepted: %s", script);
        assert_null(f);
        message_has(script, word);
        message_has(script, "x.pth: ");
        free(copy);
    }
}

static void refused(void **state) {
    (void)state;
    bad("<os system>([true]tR.", "it names \"system\" of \"os\"");
    bad("<posix system>([true]tR.", "no Python objects");
    bad("<builtins eval>.", "no Python objects");
    bad("<torch._utils _rebuild_tensor_v3>.", "no Python objects");
    bad("[os][system]_G([true]tR.", "it names \"system\" of \"os\"");
    bad("#1#2_G.", "without a name");
    bad("[a])R.", "not a function");
    bad("<torch FloatStorage>)R.", "type of storage");
    bad("<collections OrderedDict>#1R.", "not a function");
    bad("<collections OrderedDict>(#1tR.", "OrderedDict");
    bad("I1\n.", "opcode 0x49");
    bad("i.", "opcode 0x69");
    bad("o.", "opcode 0x6f");
    bad("P.", "opcode 0x50");
    bad("\x82.", "opcode 0x82");
    bad("\xff.", "opcode 0xff");
    bad(".", "more than there is");
    bad("t.", "mark");
    bad("0.", "more than there is");
    bad("1.", "mark");
    bad("a.", "more than there is");
    bad("]a.", "more than there is");
    bad("](a.", "more than there is");
    bad("#1#2a.", "no list");
    bad("}(#1u.", "key without a value");
    bad("(#1d.", "key without a value");
    bad("#1([a]#1u.", "no dictionary");
    bad("e.", "mark");
    bad("(e.", "more than there is");
    bad("(.", "more than there is");
    bad("_1.", "more than there is");
    bad("(_1.", "more than there is");
    bad("b.", "more than there is");
    bad("#1b.", "more than there is");
    bad("h\1.", "remember");
    bad("q\1.", "more than there is");
    bad("#1r\xff\xff\xff\xff.", "remembers more");
    bad("Q.", "more than there is");
    bad("#1Q.", "not a storage");
    bad("([storage]tQ.", "not a storage");
    bad("([storage]#1[0][cpu]#1tQ.", "not a storage");
    bad("([storage]<torch FloatStorage>[0][cpu][x]tQ.", "not a storage");
    bad("([storage]<torch FloatStorage>[0][cpu]#1#1tQ.", "part of another");
    bad("<torch._utils _rebuild_tensor_v2>)R.", "storage, offset, shape, strides");
    bad("<torch._utils _rebuild_parameter>)R.", "parameter");
    bad("<torch._utils _rebuild_parameter>#1_1R.", "parameter");
    bad("}[a]" L "s.", "storage, offset, shape, strides");
    bad("].", "not a dictionary");
    bad("#1.", "not a dictionary");
    bad("}.", "no tensors");
    bad("}([a]#1u.", "no tensors");
    bad("}(#1" W "u.", "without a name");
    bad("}([a]" W "[a]" W "u.", "twice");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#1(#2#3t(#3#1t") "s.", "reaches beyond");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(#7t(#1t") "s.", "reaches beyond");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(#9t(#0t") "s.", "reaches beyond"); /* expanded */
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(#2#3t(#4#1t") "s.", "reaches beyond");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(#2t(#1#1t") "s.", "make no sense");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0([x]t(#1t") "s.", "make no sense");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(J\xff\xff\xff\xfft(#1t") "s.", "make no sense");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(#1#1#1#1#1#1#1#1#1t(#1t") "s.", "make no sense");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"),
                      "#0(J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7ft(#1#1#1t") "s.",
        "beyond counting");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "0", "#6"), "#0(#3t(\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7ft") "s.",
        "reaches beyond");
    bad("}[a]" TENSOR(STORAGE("FloatStorage", "5", "#6"), "#0(#1t(#1t") "s.", ""); /* no such storage */
    bad("X\xff\xff\xff\xff", "cut short");
    bad("X\xff", "cut short");
}

/* One field of an archive changed: of its end, of the first entry of its directory, or of that entry itself. */
static void patched(char part, size_t field, uint64_t value, int size, const char *word) {
    bytes b = zip_of(STATE ".", 0);
    const size_t end = b.size - 22;
    const size_t directory = (size_t)b.data[end + 16] | (size_t)b.data[end + 17] << 8;
    const size_t at = (part == 'e' ? end : part == 'd' ? directory : 0) + field;
    for (int i = 0; i < size; i++) b.data[at + (size_t)i] = (unsigned char)(value >> (8 * i));
    mhla_safetensors *f;
    unsigned char *copy;
    assert_int_equal(open_copy(&f, b.data, b.size, &copy), MHLA_EDATA);
    message_has("patched", word);
    free(copy);
}

/* What only an archive can have wrong. */
static void archives(void **state) {
    (void)state;
    mhla_safetensors *f;
    unsigned char *copy;
    bytes b = {.size = 0}, pickle = {.size = 0};
    add_pickle(&pickle, STATE ".");
    patched('e', 10, 0xffff, 2, "more entries");
    patched('e', 12, 0xfffffff, 4, "outside of the file");
    patched('e', 16, 0xfffffff, 4, "outside of the file");
    patched('e', 16, 1, 4, "no entry of the directory");
    patched('e', 10, 5, 2, "");
    patched('d', 0, 0, 4, "no entry of the directory");
    patched('d', 8, 1, 2, "encrypted");
    patched('d', 16, 0, 4, "was altered");
    patched('d', 20, 5, 4, "two sizes");
    patched('d', 20, 0xffffffffffffff, 8, "");
    patched('d', 28, 0xffff, 2, "beyond the directory");
    patched('d', 30, 0xffff, 2, "beyond the directory");
    patched('d', 42, 5, 4, "points to none");
    patched('d', 42, 0xfffffff0, 4, "points to none");
    patched('l', 26, 0xffff, 2, "outside of the file");
    b = zip_of(STATE ".", 0); /* a NUL in the names of all entries: as good as any other letter */
    for (size_t i = 0; i + 1 < b.size; i++)
        if (b.data[i] == 'x' && b.data[i + 1] == '/') b.data[i] = 0;
    check(&b);
    b.size = 0;
    const entry without[] = {{"x/data/0", six, sizeof six}};
    add_zip(&b, without, 1, 0, 0);
    assert_int_equal(open_copy(&f, b.data, b.size, &copy), MHLA_EDATA);
    message_has("without", "without data.pkl");
    free(copy);
    const entry deflated[] = {{"x/data.pkl", pickle.data, pickle.size}};
    b.size = 0;
    add_zip(&b, deflated, 1, 0, 8);
    assert_int_equal(open_copy(&f, b.data, b.size, &copy), MHLA_ENOTSUP);
    message_has("deflated", "compressed");
    free(copy);
    const entry twice[] = {{"x/data.pkl", pickle.data, pickle.size}, {"x/data.pkl", pickle.data, pickle.size}};
    b.size = 0;
    add_zip(&b, twice, 2, 0, 0);
    assert_int_equal(open_copy(&f, b.data, b.size, &copy), MHLA_EDATA);
    message_has("twice", "occurs twice");
    free(copy);
    const entry big[] = {{"x/data.pkl", pickle.data, pickle.size}, {"x/byteorder", "big", 3}};
    b.size = 0;
    add_zip(&b, big, 2, 0, 0);
    assert_int_equal(open_copy(&f, b.data, b.size, &copy), MHLA_ENOTSUP);
    message_has("big", "big-endian");
    free(copy);
}

/* Every truncation is refused; a flipped bit of an archive in what is read, too, by its checksum. */
static void damage(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        const bytes b = kind == 2 ? legacy_of(ORDERED ".") : zip_of(ORDERED ".", kind);
        mhla_safetensors *f;
        unsigned char *copy;
        for (size_t n = 0; n < b.size; n++) {
            assert_int_equal(open_copy(&f, b.data, n, &copy), MHLA_EDATA);
            free(copy);
        }
        for (size_t bit = 0; bit < 8 * b.size; bit++) {
            bytes flipped = b;
            flipped.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            if (open_copy(&f, flipped.data, flipped.size, &copy) == MHLA_OK) {
                for (int64_t i = 0; i < mhla_safetensors_count(f); i++) {
                    const mhla_stored *t = mhla_safetensors_at(f, i);
                    unsigned char *all = new_bytes(t->bytes);
                    if (t->bytes) memcpy(all, t->data, t->bytes);
                    free(all);
                    if (kind < 2 && strcmp(t->name, "w") == 0) assert_memory_equal(t->data, six, sizeof six);
                }
                mhla_safetensors_close(f);
            }
            free(copy);
        }
    }
}

#define MODULE "<__torch__.net Net>)_N"
#define SCRIPT                                                                                                         \
    MODULE "}([training]_F[w]" W "[inner]<__torch__.a.___torch_mangle_3 B>)_N}([t]" T                                  \
           "[n]#3[l]<torch.jit._pickle build_intlist>](#1#2e_1Rub[i]" I "ub."

/* TorchScript: modules in modules, whose names are put together; none without end, none of something else. */
static void modules(void **state) {
    (void)state;
    mhla_safetensors *f;
    unsigned char *copy;
    const bytes b = zip_of(SCRIPT, 0);
    ASSERT_OK(open_copy(&f, b.data, b.size, &copy));
    assert_int_equal(mhla_safetensors_count(f), 3);
    float x[6];
    ASSERT_OK(mhla_safetensors_load(x, f, "w", 2, (const int64_t[]){2, 3}));
    assert_memory_equal(x, six, sizeof six);
    ASSERT_OK(mhla_safetensors_load(x, f, "inner.t", 2, (const int64_t[]){3, 2}));
    assert_non_null(mhla_safetensors_find(f, "i"));
    mhla_safetensors_close(f);
    free(copy);
    /* twenty-five modules, each with the one before under two names */
    char deep[2048] = MODULE "}[w]" W "sbqA";
    for (char c = 'A'; c < 'A' + 25; c++)
        snprintf(deep + strlen(deep), sizeof deep - strlen(deep), MODULE "}([a]h%c[b]h%cubq%c", c, c, c + 1);
    strcat(deep, ".");
    const struct {
        const char *script, *message;
    } cases[] = {{MODULE "q1}([self]h1[w]" W "ub.", "without end"},
                 {deep, "without end"},
                 {MODULE "#1b.", "a module made of something else"},
                 {MODULE "}([training]_Fub.", "no tensors in it"},
                 {MODULE "}(#1" W "ub.", "without a name"},
                 {"<__torch_.net Net>)_N}([w]" W "ub.", "no Python objects"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bytes wrong = zip_of(cases[i].script, 0);
        assert_int_equal(open_copy(&f, wrong.data, wrong.size, &copy), MHLA_EDATA);
        message_has(cases[i].script, cases[i].message);
        free(copy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_formats), cmocka_unit_test(refused),
                                       cmocka_unit_test(archives), cmocka_unit_test(damage), cmocka_unit_test(modules)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
