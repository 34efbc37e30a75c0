/* Pages of any content: every kind of piece, text that is not ours, the first failure kept until the end. */
#include <mhla/page.h>

#include "files.h"

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++) n++;
    return n;
}

static void all_pieces(void **state) {
    (void)state;
    const double x[] = {256.0, 1024.0, 4096.0}, y[] = {0.001, 0.004, 0.016};
    const float weights[] = {0.0f, 0.25f, NAN, 0.5f, 0.25f, 0.0f};
    const char *const cells[] = {"name", "value", "<i>", "1", "second", NULL};
    const char *path = in_folder("page.html");
    mhla_page *page = NULL;
    ASSERT_OK(mhla_page_open(&page, path, "a <b> & c"));
    mhla_page_section(page, "one & two");
    mhla_page_text(page, "text <script>");
    mhla_page_verbatim(page, "line\n  line");
    mhla_page_table(page, cells, 3, 2);
    for (int i = 0; i < 2; i++) {
        mhla_page_chart(page, "time", "tokens", MHLA_PAGE_LOG_X | MHLA_PAGE_LOG_Y);
        mhla_page_line(page, "MHLA", mhla_page_colour("mhla"), x, y, 3);
        mhla_page_line(page, "softmax", mhla_page_colour("softmax"), x, y, 2);
    }
    mhla_page_map(page, "map", "note", weights, 2, 3, 4);
    mhla_page_map(page, "map", "note", weights, 3, 2, -1);
    ASSERT_OK(mhla_page_close(page));
    size_t size;
    char *text = read_file(path, &size);
    assert_int_equal(count(text, "<script>"), 1); /* the page's own */
    assert_int_equal(count(text, "text &lt;script&gt;"), 1);
    assert_int_equal(count(text, "<h1>a &lt;b&gt; &amp; c</h1>"), 1);
    assert_int_equal(count(text, "<figure class=\"chart\">"), 2);
    assert_int_equal(count(text, "<div class=\"charts\">"), 1); /* side by side */
    assert_int_equal(count(text, "<div class=\"maps\">"), 1);
    assert_int_equal(count(text, "<span class=\"cell\""), 1);
    assert_int_equal(count(text, "left:33.333%;top:50.000%"), 1); /* cell 4 of 2 x 3 */
    assert_int_equal(count(text, ">1024</text>"), 2);
    assert_int_equal(count(text, ">256</text>"), 2);
    assert_int_equal(count(text, "<th scope=\"row\">&lt;i&gt;</th><td>1</td>"), 1);
    assert_int_equal(count(text, "<div"), count(text, "</div>"));
    assert_int_equal(count(text, "http"), 1); /* http-equiv */
    /* evenly spaced on the logarithmic axis: the middle point is half way between the others */
    const char *line = strstr(text, "<polyline class=\"line c0\" points=\"");
    assert_non_null(line);
    double px[3], py[3];
    assert_int_equal(sscanf(strchr(line, '=') + 1, "%*[^0-9]%*d\" points=\"%lf,%lf %lf,%lf %lf,%lf", &px[0], &py[0],
                            &px[1], &py[1], &px[2], &py[2]),
                     6);
    assert_true(fabs(px[0] + px[2] - 2.0 * px[1]) < 0.3 && px[0] < px[1] && py[0] > py[2]);
    free(text);
}

/* Numbers have their zeros, not an exponent, in the legend and on the axis; verbatim text is broken into lines. */
static void numbers(void **state) {
    (void)state;
    const double x[] = {256.0, 65536.0}, y[] = {0.5, 22712.6};
    const char *path = in_folder("numbers.html");
    mhla_page *page = NULL;
    ASSERT_OK(mhla_page_open(&page, path, "numbers"));
    mhla_page_verbatim(page, "a long line");
    mhla_page_chart(page, "memory", "tokens", MHLA_PAGE_LOG_X | MHLA_PAGE_LOG_Y);
    mhla_page_line(page, "MHLA", 0, x, y, 2);
    ASSERT_OK(mhla_page_close(page));
    size_t size;
    char *text = read_file(path, &size);
    assert_int_equal(count(text, "<b>22710</b>"), 1);
    assert_int_equal(count(text, ">10000</text>"), 1);
    assert_int_equal(count(text, "text-anchor=\"end\">65536</text>"), 1); /* not cut off at the right edge */
    assert_int_equal(count(text, "text-anchor=\"middle\">256</text>"), 1);
    assert_int_equal(count(text, "e+0"), 0);
    assert_int_equal(count(text, "white-space:pre-wrap"), 1);
    free(text);
}

static void failures(void **state) {
    (void)state;
    const char *path = in_folder("page.html");
    mhla_page *page = NULL;
    const float weight = 1.0f;
    const double x = 1.0;
    remove(path);
    ASSERT_OK(mhla_page_open(&page, path, "t"));
    mhla_page_image(page, "no/such.png", "");
    mhla_page_map(page, "", "", &weight, 0, 1, -1); /* a second failure does not hide the first */
    assert_int_not_equal(mhla_page_close(page), MHLA_OK);
    assert_non_null(strstr(mhla_message(), "no/such.png"));
    assert_false(exists(path));
    ASSERT_OK(mhla_page_open(&page, path, "t"));
    mhla_page_line(page, "l", 0, &x, &x, 1);
    assert_int_equal(mhla_page_close(page), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "a line needs a chart before it");
    ASSERT_OK(mhla_page_open(&page, path, "t"));
    mhla_page_map(page, "", "", &weight, 5000, 1, -1);
    assert_int_equal(mhla_page_close(page), MHLA_EINVAL);
    ASSERT_OK(mhla_page_open(&page, path, "t"));
    mhla_page_discard(page);
    mhla_page_discard(NULL);
    assert_false(exists(path));
    assert_int_equal(mhla_page_open(&page, "no/such/folder/p.html", "t"), MHLA_EIO);
    assert_int_equal(mhla_page_open(&page, NULL, "t"), MHLA_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_pieces), cmocka_unit_test(numbers),
                                       cmocka_unit_test(failures)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
