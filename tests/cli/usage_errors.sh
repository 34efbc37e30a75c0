# Every line is a command line that makes no sense: a message on stderr, nothing on stdout, exit code 2.
try() { mhla "$@" >stdout; echo "  -> $?"; cat stdout; }
try frobnicate
try --verbose
try info --frobnicate
try info -j
try info extra
try info --json=yes
try info --threads
try info --threads 0
try info --threads two
try check everything
try bench nothing-of-the-sort
try bench --tokens
try bench --tokens 0 --heads 1
try bench --tokens -5
try bench --tokens 12.5
try bench --grid 16x
try bench --grid 1x2x3x4
try bench --grid 4x4 --blocks 2
try bench --grid 4x4 --tokens 15
try bench --grid 1000000x1000000x1000000
try bench --heads 4
try bench --dtype float16
try bench --operator mhla,flash
try bench --denominator eq5
try bench --feature gelu
try bench --backend tbb
try bench --seconds 0
try bench --json --engine
try bench forward --grid 4x4 --blocks 5x5
try bench causal --tokens 100 --chunk 10 --chunks 2
try bench forward --dtype q8_0
try demo --fast
# without a word on how threads wait, the program begins once more; its words are the same
env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT mhla nonsense 'a b' ''; echo "-> $?"
env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT mhla info 'a b'; echo "-> $?"
