. "$CLI/lib.inc"
mhla info --no-measure | sed -E 's/^(.{12}).*/\1.../'
mhla info --json >json || exit
json <json | positive '^(cpus|threads|peak_f32_gflops|read_gbytes_per_s)$'
json <json | cut -d' ' -f1
MHLA_ISA=plain mhla info --no-measure | grep kernels
MHLA_ISA=pdp11 mhla info --no-measure | grep kernels | sed 's/kernels *[a-z0-9]*/kernels .../'
mhla info --threads 1 --no-measure --json | json | grep threads
