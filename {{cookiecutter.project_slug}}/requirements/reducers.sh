#!/usr/bin/env bash
# Check whether NCCL can use reducers: bash requirements/reducers.sh. With --required, the script fails if NCCL can't.
# NCCL loads a plug-in that exports a supported version of two tables: net sends and receives; CollNet adds in the
# reducers. Both libraries contain the tables' names as strings. Source: github.com/NVIDIA/nccl, src/plugin.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/sbin

required=${1:-}
if [ "${required:---required}" != --required ]; then
    echo "$required isn't a valid argument of requirements/reducers.sh. Use --required or no argument." >&2
    exit 2
fi

find_library() { # a name -> the file that the loader uses, see ld.so(8); prints nothing if there is no such file
    local folder
    for folder in ${LD_LIBRARY_PATH//:/ }; do
        if [ -f "$folder/$1" ]; then echo "$folder/$1" && return; fi
    done
    ldconfig -p | sed -n "s|^\s$1 .* => ||p" | head -n 1
}

versions() { # a library, a table -> v5 v6 v10, a line each; prints nothing if there is no such file
    if [ -f "$1" ]; then grep --text --null-data --only-matching "^${2}_v[0-9]*$" "$1" | tr '\0' '\n' | sed 's/.*_//' | sort -u; fi
}

common() { # a table -> the versions that both the plug-in and NCCL support
    comm -12 <(versions "$plugin" "$1") <(versions "$nccl" "$1") | sort -V | paste -sd ' '
}

LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
nccl=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/nccl/lib/libnccl.so.2 # of a wheel
if [ ! -f "$nccl" ]; then nccl=$(find_library libnccl.so.2); fi
plugin=$(find_library libnccl-net.so)
net=$(common ncclNetPlugin) collnet=$(common ncclCollNetPlugin)

idle="reducers would be idle but billed"
for library in "$plugin" "$nccl"; do
    echo "${library:-no library}: net $(versions "$library" ncclNetPlugin | sort -V | paste -sd ' ')," \
        "CollNet $(versions "$library" ncclCollNetPlugin | sort -V | paste -sd ' ')"
done
if [ -z "$nccl" ]; then
    echo "NCCL isn't installed, as in an image for CPUs: $idle; use an image with CUDA, or remove pool 2"
elif [ -z "$plugin" ]; then
    echo "NCCL can't find the plug-in libnccl-net.so: $idle; install google-reduction-server"
elif [ -n "$net" ] && [ -n "$collnet" ]; then
    echo "NCCL can load the plug-in of the reducers, net $net, CollNet $collnet"
    exit
elif [ -n "$net" ]; then
    echo "NCCL loads net $net of the plug-in, but not CollNet, which the reducers need: $idle;" \
        "install a newer google-reduction-server, or remove pool 2"
else
    echo "NCCL can't load libnccl-net.so: $idle; install a newer google-reduction-server, or remove pool 2"
fi
test -z "$required"
