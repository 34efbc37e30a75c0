# Reads one JSON document per line or one over many lines, prints a line "path value" for each leaf; exits with 1 and a
# message where it is not JSON. Enough of a parser to tell that a program's output is well-formed.
{ text = text $0 "\n" }
function fail(what) { printf "not JSON at character %d: %s\n", at, what; bad = 1; exit 1 }
function skip() { while (at <= length(text) && index(" \t\n\r", substr(text, at, 1))) at++ }
function string(    start) {
    start = ++at
    while (at <= length(text) && substr(text, at, 1) != "\"") at += substr(text, at, 1) == "\\" ? 2 : 1
    if (at > length(text)) fail("a string does not end")
    return substr(text, start, at++ - start)
}
function members(path, close_, keyed,    n, key) {
    at++
    skip()
    if (substr(text, at, 1) == close_) { at++; return }
    for (n = 0;; n++) {
        skip()
        key = n
        if (keyed) {
            if (substr(text, at, 1) != "\"") fail("a key is expected")
            key = string()
            skip()
            if (substr(text, at++, 1) != ":") fail("a colon is expected")
        }
        value(path (path == "" ? "" : ".") key)
        skip()
        if (substr(text, at, 1) == close_) { at++; return }
        if (substr(text, at++, 1) != ",") fail("a comma or " close_ " is expected")
    }
}
function value(path,    c, word) {
    skip()
    c = substr(text, at, 1)
    if (c == "{") members(path, "}", 1)
    else if (c == "[") members(path, "]", 0)
    else if (c == "\"") print path, string()
    else {
        match(substr(text, at), /^[-+.0-9a-zA-Z]*/)
        word = substr(text, at, RLENGTH)
        if (word !~ /^(true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)$/) fail("a value is expected")
        at += RLENGTH
        print path, word
    }
}
END {
    if (bad) exit 1
    at = 1
    for (skip(); at <= length(text); skip()) value("")
}
