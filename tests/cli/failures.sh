# What is asked for makes sense but cannot be had: exit code 1.
mhla check --isa pdp11; echo "-> $?"
mhla bench --isa pdp11; echo "-> $?"
for what in '--version' '--help' 'train --help' 'info --no-measure'; do mhla $what >/dev/full; echo "-> $?"; done
mhla --version >&-; echo "-> $?"
mhla bench forward --batch 1000000000000 --tokens 1000000; echo "-> $?"
