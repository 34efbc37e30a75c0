# The table without its times but with its ranks, as far as 4,096 tokens.
mhla demo --quick | sed 1d | grep -v '^\* ' |
    sed -E 's/[0-9.]+e-[0-9]+/ERROR/; s/[0-9.]+ (s|ms|us)\*?( |$)/TIME\2/; s/[0-9.]+ ([KMG]iB|B)( |$)/MEMORY\2/g
            s/[0-9]+ %/N %/; s/cases.*/cases/; s/  +/  /g' | uniq
