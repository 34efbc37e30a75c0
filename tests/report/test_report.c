/* The report: what it reads of whole, torn, hostile and empty runs; that its page is well-formed, asks nobody for anything,
 * and shows the numbers that were measured, at their places. */
#include "file/json.h"
#include "file/safetensors.h"
#include "files.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/report.h"

/* ---- A run by hand ---- */

static void put(const char *path, const char *text) { write_file(path, text, strlen(text)); }

static const char *at(const char *run, const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%.255s/%s", run, name);
    return path;
}

static void new_folder(const char *path) { assert_int_equal(mkdir(path, 0777), 0); }

/* Its mixing matrix on a 2 x 1 grid: both query blocks read block 1 alone. */
static const float second[4] = {0.0f, 1.0f, 0.0f, 1.0f};

static void put_checkpoint(const char *run, const char *config) {
    const int64_t shape[] = {2, 2, 1, 1};
    const mhla_storable tensors[] = {
        {"blocks.10.attn.piece_attn.conv.weight", 4, shape, second, MHLA_IO_F32, MHLA_IO_F32},
        {"blocks.9.attn.piece_attn.conv.weight", 4, shape, second, MHLA_IO_F32, MHLA_IO_BF16},
        {"head.weight", 2, shape, second, MHLA_IO_F32, MHLA_IO_F32},
    };
    if (!exists(at(run, "checkpoints"))) new_folder(at(run, "checkpoints"));
    new_folder(at(run, "checkpoints/step-00000040"));
    put(at(run, "checkpoints/step-00000040/config.json"), config);
    ASSERT_OK(mhla_safetensors_write(at(run, "checkpoints/step-00000040/model.safetensors"), tensors, 3, NULL, 0));
}

static void put_samples(const char *run, float first) {
    mhla_image image = {0};
    ASSERT_OK(mhla_image_reserve(&image, 3, 2, 1));
    memset(image.data, 200, 6);
    const float p[3] = {first, 0.25f, 1.0f - 0.25f - first};
    const mhla_sampled samples[] = {{0, &image, 0, p}, {7, &image, 2, p}};
    static const char *const names[] = {"cat & dog", "<b>owl</b>", "fox"};
    ASSERT_OK(mhla_samples_write(run, 40, samples, 2, 3, names));
    mhla_image_free(&image);
}

static const char config[] = "{\"model\":\"deit_nano\",\"attention\":\"mhla\",\"blocks\":[2,1],\"mix\":\"uniform\","
                             "\"class_names\":[\"cat & dog\",\"<b>owl</b>\",\"fox\"]}";
static const char lines[] =
    "{\"kind\":\"step\",\"step\":10,\"epoch\":0.5,\"loss\":2.25,\"accuracy\":null,\"rate\":0.001,\"gradient_norm\":3,"
    "\"images_per_second\":1234}\n"
    "{\"kind\":\"test\",\"step\":20,\"epoch\":1,\"images\":1500,\"loss\":0.7,\"accuracy\":0.8125,\"classes\":[0.9,null,"
    "0.5]}\n"
    "{\"kind\":\"weather\",\"step\":20,\"sun\":1}\n"
    "{\"kind\":\"step\",\"step\":30,\"epoch\":1.5,\"loss\":1.5,\"rate\":0.0005}\n"
    "{\"kind\":\"test\",\"step\":40,\"epoch\":2,\"images\":1500,\"loss\":0.6,\"accuracy\":0.75,\"ema_accuracy\":0.7925,"
    "\"classes\":[0.8125,null,0.125]}\n";

/* A new run of that name; the path stays valid. */
static const char *put_run(const char *name, float first) {
    static char paths[16][256];
    static int n;
    assert_in_range(n, 0, 15);
    const char *run = strcpy(paths[n++], in_folder(name));
    new_folder(run);
    put(at(run, "recipe.json"), "{\"data\":{\"source\":\"a<b\"},\"train\":{\"init\":\"\"}}");
    put(at(run, "metrics.jsonl"), lines);
    put_checkpoint(run, config);
    put_samples(run, first);
    return run;
}

/* ---- A page ---- */

static int is_void(const char *tag) {
    static const char *const list[] = {"meta", "img", "br", "col"};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strcmp(tag, list[i]) == 0) return 1;
    return 0;
}

/* Every tag is closed in its turn, every attribute quoted; what is inside of style and script is not looked at. */
static void assert_well_formed(const char *page) {
    char open[64][16];
    int depth = 0;
    const char *p = strstr(page, "<html");
    assert_non_null(p);
    while ((p = strchr(p, '<')) != NULL) {
        const int closing = p[1] == '/';
        const char *name = p + 1 + closing;
        const size_t n = strcspn(name, " >/\n");
        char tag[16];
        assert_in_range(n, 1, sizeof tag - 1);
        snprintf(tag, sizeof tag, "%.*s", (int)n, name);
        int quoted = 0;
        for (p = name + n; *p && (quoted || *p != '>'); p++) {
            if (*p == '"') quoted = !quoted;
            if (*p == '<') fail_msg("< inside of <%s", tag);
        }
        assert_int_equal(*p, '>');
        if (closing) {
            if (depth == 0 || strcmp(open[depth - 1], tag) != 0)
                fail_msg("</%s> closes <%s>", tag, depth ? open[depth - 1] : "");
            depth--;
        } else if (p[-1] != '/' && !is_void(tag)) {
            assert_in_range(depth, 0, 63);
            strcpy(open[depth++], tag);
            if (strcmp(tag, "style") == 0 || strcmp(tag, "script") == 0)
                p = strstr(p, strcmp(tag, "style") == 0 ? "</style" : "</script");
            assert_non_null(p);
        }
    }
    assert_int_equal(depth, 0);
}

/* The numbers that the script reads are JSON. */
static int assert_data(const char *page) {
    static const char tag[] = "<script type=\"application/json\">";
    int n = 0;
    for (const char *p = page; (p = strstr(p, tag)) != NULL; n++) {
        json_t *tree;
        p += sizeof tag - 1;
        ASSERT_OK(mhla_json_parse(&tree, p, (size_t)(strstr(p, "</script>") - p), "data"));
        json_decref(tree);
    }
    return n;
}

static char *read_page(const char *path) {
    size_t size;
    char *page = read_file(path, &size);
    assert_int_equal(strlen(page), size);
    assert_well_formed(page);
    /* nobody is asked for anything */
    assert_null(strstr(page, "http:"));
    assert_null(strstr(page, "https:"));
    assert_null(strstr(page, "<script src"));
    assert_null(strstr(page, "<link"));
    assert_null(strstr(page, "@import"));
    assert_null(strstr(page, "url("));
    static const char *const numbers[] = {">nan", "\"nan", ",nan", " nan", "-nan",
                                          ">inf", "\"inf", ",inf", " inf", "-inf"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) assert_null(strstr(page, numbers[i]));
    return page;
}

static int count(const char *page, const char *text) {
    int n = 0;
    for (const char *p = page; (p = strstr(p, text)) != NULL; p++) n++;
    return n;
}

static void has(const char *page, const char *text) {
    if (strstr(page, text) == NULL) fail_msg("the page lacks %s", text);
}

static char told[2048];
static void tell(void *user, const char *text) {
    (void)user;
    strncat(told, text, sizeof told - strlen(told) - 2);
    strcat(told, "\n");
}

static char *make(const char *const *runs, int n) {
    told[0] = '\0';
    ASSERT_OK(mhla_report_make(in_folder("page.html"), runs, n, tell, NULL));
    return read_page(in_folder("page.html"));
}

/* ---- Tests ---- */

static void test_text(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    mhla_html_text(out, "<a href='x'>\"&\" \xC3\xA9 \xFF\x01</a>");
    fclose(out);
    assert_string_equal(text,
                        "&lt;a href=&#39;x&#39;&gt;&quot;&amp;&quot; \xC3\xA9 \xEF\xBF\xBD\xEF\xBF\xBD&lt;/a&gt;");
    free(text);
    static const char *const pairs[][2] = {{"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
                                           {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xFF\xFE\xFD", "//79"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        text = mhla_base64(pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(text, pairs[i][1]);
        assert_int_equal(mhla_base64_valid(text), i > 0);
        free(text);
    }
    static const char *const bad[] = {"Zg=", "Z===", "Zg==\"><script>", "Zm9v Zm9v", "Zg==Zg==", "===="};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(mhla_base64_valid(bad[i]));
}

static void test_series(void **state) {
    (void)state;
    mhla_series s = {0};
    for (int i = 0; i < 1000; i++) ASSERT_OK(mhla_series_add(&s, i, 2.0 * i));
    assert_int_equal(s.count, 1000);
    ASSERT_OK(mhla_series_add(&s, 1000.0, NAN));
    ASSERT_OK(mhla_series_add(&s, NAN, 1.0));
    ASSERT_OK(mhla_series_add(&s, 1001.0, INFINITY));
    assert_int_equal(s.count, 1000);
    /* a run that went on from step 500 */
    ASSERT_OK(mhla_series_add(&s, 500.0, -1.0));
    assert_int_equal(s.count, 501);
    assert_true(s.x[500] == 500.0 && s.y[500] == -1.0);
    assert_true(mhla_series_median(&s) == 498.0);
    mhla_series_free(&s);
    assert_true(isnan(mhla_series_median(&s)));
}

/* Many points are thinned out, but the one peak and the last point stay; the mean of a constant is that constant. */
static void test_chart(void **state) {
    (void)state;
    mhla_series s = {0};
    for (int i = 0; i < 20000; i++) ASSERT_OK(mhla_series_add(&s, i, i == 7777 ? 123.5 : i == 19999 ? 0.25 : 0.5));
    const mhla_line line = {"x", NULL, &s, MHLA_CHART_COLOURS + 1, 0};
    for (int kind = 0; kind < 4; kind++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        const mhla_chart chart = {
            .title = "<title>", .x_name = "step", .lines = &line, .count = 1, .log_y = kind & 1, .smooth = kind >> 1};
        ASSERT_OK(mhla_chart_write(out, &chart));
        fclose(out);
        assert_in_range(size, 10000, 60000);
        has(text, "&lt;title&gt;");
        has(text, ",7777,");
        has(text, "<b>0.25</b>");
        has(text, "c1 d1"); /* the second colour, dashed */
        assert_int_equal(assert_data(text), 1);
        assert_int_equal(strstr(text, "mean of 405 neighbours") != NULL, kind >> 1);
        free(text);
    }
    mhla_series_free(&s);
    /* nothing to draw, one point, one constant, nothing but zeros on a logarithmic axis */
    for (int kind = 0; kind < 4; kind++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        for (int i = 0; i < (kind == 2 ? 5 : kind > 0); i++) ASSERT_OK(mhla_series_add(&s, i, kind == 3 ? 0.0 : 1e-7));
        const mhla_chart chart = {
            .title = "t", .x_name = "epoch", .lines = &line, .count = 1, .log_y = kind == 3, .smooth = 1};
        ASSERT_OK(mhla_chart_write(out, &chart));
        fclose(out);
        assert_int_equal(size > 0, kind > 0);
        if (kind) assert_null(strstr(text, "nan"));
        if (kind) assert_null(strstr(text, "inf"));
        if (kind) assert_int_equal(count(text, "text-anchor=\"end\""), 1); /* one number, not five times the same */
        free(text);
        mhla_series_free(&s);
    }
    /* round numbers on a logarithmic axis that is shorter than a decade */
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (int i = 0; i < 5; i++) ASSERT_OK(mhla_series_add(&s, i, 1.7 + 0.25 * i));
    ASSERT_OK(
        mhla_chart_write(out, &(mhla_chart){.title = "t", .x_name = "x", .lines = &line, .count = 1, .log_y = 1}));
    fclose(out);
    for (int i = 0; i < 5; i++) has(text, (const char *[]){">1.8<", ">2<", ">2.2<", ">2.4<", ">2.6<"}[i]);
    free(text);
    mhla_series_free(&s);
    /* values that an axis cannot tell apart */
    out = open_memstream(&text, &size);
    for (int i = 0; i < 5; i++) ASSERT_OK(mhla_series_add(&s, i, 1250.0 + 1e-4 * i));
    ASSERT_OK(mhla_chart_write(out, &(mhla_chart){.title = "t", .x_name = "x", .lines = &line, .count = 1}));
    fclose(out);
    assert_int_equal(count(text, "text-anchor=\"end\""), 1);
    has(text, ">1250<");
    free(text);
    mhla_series_free(&s);
}

static void test_run(void **state) {
    (void)state;
    const char *run = put_run("plain", 0.5f);
    char *page = make(&run, 1);
    assert_string_equal(told, "");
    has(page, "<h1>plain</h1>");
    has(page, "<b>81.25&nbsp;%</b> <span class=\"small\">epoch&nbsp;1</span>"); /* the best, not the average */
    has(page, "<td>75.00&nbsp;%</td><td>1,500</td><td>2</td><td>40</td><td>1,234</td><td>12</td><td>MHLA</td>");
    has(page, "a&lt;b");
    /* accuracy (two lines), losses, rate, norm, speed; matrices: before, two layers, two changes */
    assert_int_equal(count(page, "<figure class=\"chart\">"), 6);
    assert_int_equal(count(page, "<figure class=\"map\""), 5);
    assert_int_equal(assert_data(page), 11);
    has(page, "\"x\":[1,2],\"y\":[0.8125,0.75]}");
    has(page, "plain (average)</span> <b>79.25 %</b>");
    assert_true(strstr(page, "layer 9<br>") < strstr(page, "layer 10<br>"));
    has(page, "before training");
    has(page, "learned minus before: <span>-0.5</span>");
    /* classes of the last test: one was never seen */
    has(page, "cat &amp; dog</th><td><div class=\"bar c0\"><i style=\"width:81.25%\"></i><b>81.2&nbsp;%</b>");
    assert_int_equal(count(page, "class=\"bar "), 2);
    /* samples: right, then wrong */
    has(page, "class=\"c0 right\"><span class=\"sign\">&#10003;</span><span>cat &amp; dog</span><b>50.0&nbsp;%</b>");
    has(page, "class=\"c0 wrong\"><span class=\"sign\">&#10007;</span><span>cat &amp; dog</span><b>50.0&nbsp;%</b>");
    has(page, "&lt;b&gt;owl&lt;/b&gt;");
    assert_null(strstr(page, "<b>owl"));
    free(page);
    /* the same bytes again: nothing of time is in it */
    page = make(&run, 1);
    char *again = make(&run, 1);
    assert_string_equal(page, again);
    free(page);
    free(again);
    /* weights of another model to begin with: what was before is not known */
    put(at(run, "recipe.json"), "{\"train\":{\"init\":\"other\"}}");
    page = make(&run, 1);
    assert_int_equal(count(page, "<figure class=\"map\""), 2);
    assert_null(strstr(page, "before training"));
    free(page);
}

static int digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    return (int)(strchr(digits, c) - digits);
}

/* The picture of a map: entry (i,b) stands in the small map of query block i, at the place of block b. */
static void test_map(void **state) {
    (void)state;
    const char *run = put_run("map", 0.5f);
    char *page = make(&run, 1);
    const char *map = strstr(page, "layer 9, mixing matrix: 0 to 1\"");
    assert_non_null(map);
    map = strstr(map, "base64,") + 7;
    unsigned char bytes[4096];
    size_t size = 0;
    for (; *map != '"'; map += 4) {
        const int n = map[2] == '=' ? 1 : map[3] == '=' ? 2 : 3;
        const unsigned v = (unsigned)digit(map[0]) << 18 | (unsigned)digit(map[1]) << 12 |
                           (unsigned)(n > 1 ? digit(map[2]) : 0) << 6 | (unsigned)(n > 2 ? digit(map[3]) : 0);
        for (int k = 0; k < n; k++) bytes[size++] = (unsigned char)(v >> (16 - 8 * k));
    }
    mhla_image image = {0};
    ASSERT_OK(mhla_image_decode(&image, bytes, size, 3, "map"));
    /* from above: query 0 (block 0, block 1), a gap, query 1 (block 0, block 1) */
    const int cell = image.width, gap = image.height - 4 * cell;
    assert_in_range(gap, 1, cell);
    for (int i = 0; i < 4; i++) {
        const int y = i * cell + (i > 1 ? gap : 0) + cell / 2;
        const uint8_t *rgb = image.data + 3 * ((size_t)y * (size_t)image.width + (size_t)cell / 2);
        const int most = second[i] > 0.5f;
        assert_int_equal(rgb[0], most ? 253 : 68);
        assert_int_equal(rgb[1], most ? 231 : 1);
        assert_int_equal(rgb[2], most ? 37 : 84);
    }
    mhla_image_free(&image);
    free(page);
}

/* A hundred classes: the lowest and the highest. Matrices of heads, without a grid, too large for their numbers. */
static void test_large(void **state) {
    (void)state;
    const char *run = put_run("large", 0.5f), *model = "checkpoints/step-00000040/model.safetensors";
    char text[4096] = "{\"kind\":\"test\",\"step\":1,\"epoch\":1,\"accuracy\":0.5,\"classes\":[";
    for (int i = 0; i < 100; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.2f", i ? "," : "", i * 37 % 100 / 100.0);
    strcat(text, "]}\n");
    put(at(run, "metrics.jsonl"), text);
    put(at(run, "checkpoints/step-00000040/config.json"), "{\"blocks\":[2,3],\"mix\":\"paper\"}");
    static float values[65 * 65];
    for (int i = 0; i < 65 * 65; i++) values[i] = (float)i;
    const int64_t heads[] = {2, 3, 3}, large[] = {65, 65, 1, 1, 1, 1}, wrong[] = {6, 5}, huge[] = {1, 65 * 65};
    const mhla_storable tensors[] = {
        {"model.layers.0.attn.mixing_matrix", 3, heads, values, MHLA_IO_F32, MHLA_IO_F32},
        {"model.layers.1.attn.mixing_matrix", 6, large, values, MHLA_IO_F32, MHLA_IO_F32},
        {"model.layers.2.attn.mixing_matrix", 2, wrong, values, MHLA_IO_F32, MHLA_IO_F32},
        {"model.layers.3.attn.mixing_matrix", 2, huge, values, MHLA_IO_F32, MHLA_IO_F32},
    };
    ASSERT_OK(mhla_safetensors_write(at(run, model), tensors, 4, NULL, 0));
    char *page = make(&run, 1);
    has(page, "The 30 lowest and the 30 highest of 100 classes.");
    assert_int_equal(count(page, "class=\"bar "), 60);
    assert_true(strstr(page, "class 73</th>") < strstr(page, "class 27</th>")); /* 0.01 and 0.99 */
    assert_null(strstr(page, "class 50</th>"));
    assert_int_equal(count(page, "<figure class=\"map\""), 3);
    has(page, "layer 0, head 1<br><span class=\"small\" aria-live=\"polite\">9 to 17<");
    has(page, "[0,1,2,3,4,5,6,7,8]");
    has(page, "data-layout=\"[1,65,65,1,2,0,130,130]\"><div>"); /* row by row, not to be walked over */
    assert_int_equal(assert_data(page), 3);
    free(page);
}

static void test_several(void **state) {
    (void)state;
    new_folder(in_folder("x"));
    new_folder(in_folder("y"));
    const char *a = put_run("x/run", 0.5f), *b = put_run("y/run", 0.125f), *c = put_run("other", 0.5f);
    put(at(c, "checkpoints/step-00000040/config.json"), "{\"class_names\":[\"one\",\"two\",\"three\"]}");
    const char *runs[] = {a, b, c};
    char *page = make(runs, 3);
    has(page, "3 runs side by side");
    has(page, "x/run");
    has(page, "y/run");
    has(page, ">other</th>");
    /* x and y share their classes, the third does not */
    assert_int_equal(count(page, "<table class=\"bars\">"), 2);
    assert_int_equal(count(page, "class=\"bar "), 6);
    /* all three were asked about the same pictures */
    assert_int_equal(count(page, "class=\"card\""), 2);
    assert_int_equal(count(page, "class=\"sign\""), 6);
    has(page, "class=\"c1 wrong\"><span class=\"sign\">&#10007;</span><span>fox</span><b>62.5&nbsp;%</b>");
    free(page);
    const char *many[65];
    for (int i = 0; i < 65; i++) many[i] = a;
    ASSERT_FAILS(mhla_report_write(in_folder("no.html"), many, 65), MHLA_EINVAL, "65 runs");
    ASSERT_FAILS(mhla_report_write(in_folder("no.html"), many, 0), MHLA_EINVAL, "0 runs");
    page = make(many, 64);
    assert_int_equal(count(page, "class=\"card\""), 2);
    free(page);
    assert_false(exists(in_folder("no.html")));
}

static void test_torn(void **state) {
    (void)state;
    const char *run = put_run("torn", 0.5f);
    char text[4096];
    snprintf(text, sizeof text, "%s{\"kind\":\"step\",\"step\":50,\"epo", lines);
    put(at(run, "metrics.jsonl"), text);
    char *page = make(&run, 1);
    has(told, "metrics.jsonl: the last line is incomplete");
    has(page, "metrics.jsonl: the last line is incomplete");
    has(page, "81.25");
    free(page);
    snprintf(text, sizeof text, "%s\x01\x02\n[1]\n\n{\"kind\":\"step\"}\n{\"kind\":3,\"epoch\":3}\n7\n", lines);
    put(at(run, "metrics.jsonl"), text);
    page = make(&run, 1);
    has(told, "metrics.jsonl: skipped 3 lines that are not a JSON object, the first is line 6");
    free(page);
    /* no line yet, but the checkpoint that a run begins with */
    put(at(run, "metrics.jsonl"), "");
    remove(at(run, "samples.json"));
    page = make(&run, 1);
    assert_string_equal(told, "");
    assert_int_equal(count(page, "<figure class=\"map\""), 5);
    assert_int_equal(count(page, "<figure class=\"chart\""), 0);
    free(page);
    /* a checkpoint cut off, a recipe that is none, samples that are none */
    put(at(run, "metrics.jsonl"), lines);
    put(at(run, "checkpoints/step-00000040/model.safetensors"), "12345");
    put(at(run, "recipe.json"), "[]");
    put(at(run, "samples.json"), "{");
    page = make(&run, 1);
    has(told, "model.safetensors");
    has(told, "recipe.json: expected an object");
    has(told, "samples.json:1:1");
    assert_int_equal(count(page, "class=\"remark\""), 3);
    free(page);
    /* nothing but curves; a newer checkpoint without a config; a link that leads nowhere */
    new_folder(at(run, "checkpoints/step-00000100"));
    new_folder(at(run, "checkpoints/.tmp-step-00000200"));
    new_folder(at(run, "checkpoints/step-00000300x"));
    page = make(&run, 1);
    has(told, "step-00000100");
    free(page);
}

static void test_hostile(void **state) {
    (void)state;
    const char *run = put_run("hostile", 0.5f);
    put(at(run, "metrics.jsonl"),
        "{\"kind\":\"test\",\"epoch\":1,\"accuracy\":\"<i>\",\"loss\":{},\"images\":-5,\"classes\":[2,-1,\"x\",null,0."
        "5,1e999]}\n"
        "{\"kind\":\"test\",\"epoch\":1,\"accuracy\":0.5,\"loss\":1e300,\"images\":9000000000000000000,\"classes\":[2,-"
        "1,0.5]}\n"
        "{\"kind\":\"step\",\"epoch\":1e308,\"step\":-1e308,\"loss\":-1e308,\"images_per_second\":-1e90}\n"
        "{\"kind\":\"step\",\"epoch\":2,\"loss\":1e99,\"images_per_second\":-1e90}\n"
        "{\"kind\":\"step\",\"epoch\":3,\"loss\":-1e99,\"images_per_second\":1e90}\n");
    put(at(run, "samples.json"),
        "{\"classes\":7,\"samples\":[1,{},{\"png\":\"\\\"><script>\",\"label\":0,\"width\":1,\"height\":1,\"top\":[1]},"
        "{\"png\":\"Zm9v\",\"label\":99999999999,\"width\":1,\"height\":1,\"top\":[1,{\"class\":-3,\"probability\":7}]}"
        ","
        "{\"png\":\"Zm9v\",\"label\":0,\"width\":-1,\"height\":1,\"top\":[1]}]}");
    char *page = make(&run, 1);
    assert_int_equal(count(page, "class=\"card\""), 1);
    has(page, "class 99999999999");
    assert_null(strstr(page, "<i>"));
    free(page);
    static const char *const configs[] = {"{\"blocks\":[0,1],\"class_names\":\"x\"}",
                                          "{\"blocks\":[1000000,1000000],\"mix\":\"paper\"}",
                                          "{\"blocks\":\"2\",\"mix\":7}",
                                          "{\"blocks\":[512,512],\"mix\":\"paper\"}",
                                          "{\"blocks\":[3,1],\"mix\":\"paper\"}",
                                          "{\"blocks\":[2,null],\"class_names\":[\"\\u0000\",1,{}],\"attention\":[1]}",
                                          "{}"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        put(at(run, "checkpoints/step-00000040/config.json"), configs[i]);
        page = make(&run, 1);
        assert_int_equal(count(page, "<figure class=\"map\""), 2);
        free(page);
    }
}

/* Any byte of any file changed: a page or a sentence, never a crash. */
static void test_flipped(void **state) {
    (void)state;
    static const char *const names[] = {"recipe.json", "metrics.jsonl", "samples.json",
                                        "checkpoints/step-00000040/config.json",
                                        "checkpoints/step-00000040/model.safetensors"};
    const char *run = put_run("flipped", 0.5f);
    rng r = {3};
    for (int i = 0; i < 150; i++) {
        const char *name = RNG_PICK(&r, names);
        size_t size;
        char *bytes = read_file(at(run, name), &size);
        const int place = rng_below(&r, (int)size);
        const char old = bytes[place];
        bytes[place] = (char)rng_next(&r);
        write_file(at(run, name), bytes, size);
        char *page = make(&run, 1);
        free(page);
        bytes[place] = old;
        write_file(at(run, name), bytes, size);
        free(bytes);
    }
}

static void test_failures(void **state) {
    (void)state;
    const char *out = in_folder("never.html"), *run = in_folder("empty");
    new_folder(run);
    ASSERT_FAILS(mhla_report_write(out, &run, 1), MHLA_EDATA, "empty: not a run");
    put(at(run, "notes.txt"), "hello");
    put(at(run, "recipe.json"), "{\"flour\":\"500 g\"}");
    ASSERT_FAILS(mhla_report_write(out, &run, 1), MHLA_EDATA, "empty: not a run");
    const char *gone = in_folder("gone"), *file = in_folder("file");
    ASSERT_FAILS(mhla_report_write(out, &gone, 1), MHLA_EIO, "gone: No such file");
    put(file, "x");
    ASSERT_FAILS(mhla_report_write(out, &file, 1), MHLA_EIO, "file: Not a directory");
    assert_false(exists(out));
    const char *good = put_run("good", 0.5f);
    const int before = entries(folder);
    ASSERT_FAILS(mhla_report_write(in_folder("no/where.html"), &good, 1), MHLA_EIO, "where.html");
    assert_int_equal(entries(folder), before);
}

static void test_samples(void **state) {
    (void)state;
    const char *run = in_folder("samples");
    new_folder(run);
    mhla_image image = {0};
    ASSERT_OK(mhla_image_reserve(&image, 640, 320, 3));
    memset(image.data, 77, 640 * 320 * 3);
    const float p[7] = {0.125f, 0.25f, NAN, 0.0625f, 0.5f, 0.03125f, 0.015625f};
    const mhla_sampled sample = {3, &image, 4, p};
    ASSERT_OK(mhla_samples_write(run, 12, &sample, 1, 7, NULL));
    mhla_image_free(&image);
    json_t *tree;
    ASSERT_OK(mhla_json_load(&tree, at(run, "samples.json")));
    const json_t *row = json_array_get(json_object_get(tree, "samples"), 0), *top = json_object_get(row, "top");
    assert_int_equal(json_integer_value(json_object_get(row, "width")), 160);
    assert_int_equal(json_integer_value(json_object_get(row, "height")), 80);
    assert_true(mhla_base64_valid(json_string_value(json_object_get(row, "png"))));
    static const int order[] = {4, 1, 0, 3, 5};
    assert_int_equal(json_array_size(top), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *guess = json_array_get(top, i);
        assert_int_equal(json_integer_value(json_object_get(guess, "class")), order[i]);
        assert_true(json_number_value(json_object_get(guess, "probability")) == (double)p[order[i]]);
    }
    json_decref(tree);
    ASSERT_FAILS(mhla_samples_write(in_folder("nowhere"), 12, NULL, 0, 7, NULL), MHLA_EIO, "samples.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),    cmocka_unit_test(test_series),   cmocka_unit_test(test_chart),
        cmocka_unit_test(test_run),     cmocka_unit_test(test_map),      cmocka_unit_test(test_large),
        cmocka_unit_test(test_several), cmocka_unit_test(test_torn),     cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_flipped), cmocka_unit_test(test_failures), cmocka_unit_test(test_samples),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
