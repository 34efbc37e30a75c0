. "$CLI/lib.inc"
mhla --version | sed -E 's/[0-9]+\.[0-9]+\.[0-9]+$/MAJOR.MINOR.PATCH/'
