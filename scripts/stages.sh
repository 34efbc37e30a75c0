# Sourced by .ci/run and scripts/check_slow.sh: runs named stages, times each, counts, and fails at the end if one did.
passed=0
failed=0

stage() { # stage NAME COMMAND...
    name=$1; shift
    echo "==== $name"
    begin=$(date +%s)
    if "$@"; then verdict=passed; passed=$((passed + 1)); else verdict=FAILED; failed=$((failed + 1)); fi
    echo "==== $name: $verdict in $(($(date +%s) - begin)) s"
}

skip() { # skip NAME REASON
    echo "==== $1: SKIPPED, $2"
}

stages_end() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
