# What ranks cost: the prediction follows from a link and a rate that are given; the measurement has its rows.
. "$CLI/lib.inc"
. "$CLI/ranks.inc"
mhla bench mpi --help
tiny="--model deit_nano --batch 1 --seconds 0.01"
echo '# predicted, by the formula: gradients 4 x parameters x (P - 1) / P / bandwidth + buckets x latency'
mhla bench mpi $tiny --predict deit_tiny --link 8,1000 --gflops 100 --ranks 1,2,16 --json | json | grep -v 'update\|step_ms\|per_second'
mhla bench mpi $tiny --predict lm_micro --link 10,50 --gflops 100 --ranks 2 --batch 3 | sed -n 1p
mhla bench mpi $tiny --predict dit_xl_2 --link 10,50 --gflops 100 --ranks 4 --parts 16 | awk 'NR == 3 { print $1, $2, $3, $4 } NR == 4'
echo '# measured'
json_of() { json | sed -E 's/(seconds|bytes_per_second|step|forward_backward|gradients_not_hidden|update|new_weights|samples_per_second|predicted) .*/\1 N/'; }
mhla bench mpi $tiny --json | json_of
ranks 3 mhla bench mpi $tiny --model lm_micro --parts 4 --json | json_of | tail -12
ranks 2 mhla bench mpi $tiny --predict deit_nano --ranks 1,2 | awk 'NR > 2 { print $1, $2 }'
echo '# refused'
say() { own | grep -a '^mhla' | sed 's/;.*//; s/: rank [0-9]: /: /' | awk '!said[$0]++'; } # each rank may say it
mhla bench mpi --ranks 2 2>&1 | say
mhla bench mpi --predict deit_tiny 2>&1 | say
mhla bench mpi --predict deit_tiny --link 10 2>&1 | say
mhla bench mpi --predict deit_tiny --link 10,50 --ranks 1,3 2>&1 | say
mhla bench mpi --predict nothing --link 10,50 2>&1 | say | cut -c 1-60
mhla bench mpi --model dit_micro 2>&1 | say
ranks 2 mhla bench mpi --parts 1 2>&1 | say
ranks 2 mhla bench forward 2>&1 | say
