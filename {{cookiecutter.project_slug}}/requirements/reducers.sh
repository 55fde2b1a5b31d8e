#!/usr/bin/env bash
# Says whether NCCL can use reducers: bash requirements/reducers.sh; with --required it fails where NCCL cannot.
# NCCL takes a plug-in that exports a version of two tables which it looks for: net sends and receives, CollNet has the
# reducers add. The names of both stand in either library as strings. Source: github.com/NVIDIA/nccl, src/plugin.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/sbin

required=${1:-}
if [ "${required:---required}" != --required ]; then
    echo "requirements/reducers.sh takes --required, and not $required" >&2
    exit 2
fi

find_library() { # a name -> the file that the loader takes, as ld.so(8) has it; nothing where there is none
    local folder
    for folder in ${LD_LIBRARY_PATH//:/ }; do
        if [ -f "$folder/$1" ]; then echo "$folder/$1" && return; fi
    done
    ldconfig -p | sed -n "s|^\s$1 .* => ||p" | head -n 1
}

versions() { # a library, a table -> v5 v6 v10, a line each; nothing where there is no such file
    if [ -f "$1" ]; then grep --text --null-data --only-matching "^${2}_v[0-9]*$" "$1" | tr '\0' '\n' | sed 's/.*_//' | sort -u; fi
}

common() { # a table -> the versions that the plug-in offers and NCCL takes
    comm -12 <(versions "$plugin" "$1") <(versions "$nccl" "$1") | sort -V | paste -sd ' '
}

LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
nccl=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/nccl/lib/libnccl.so.2 # of a wheel
if [ ! -f "$nccl" ]; then nccl=$(find_library libnccl.so.2); fi
plugin=$(find_library libnccl-net.so)
net=$(common ncclNetPlugin) collnet=$(common ncclCollNetPlugin)

idle="reducers would be paid for and idle"
for library in "$plugin" "$nccl"; do
    echo "${library:-no library}: net $(versions "$library" ncclNetPlugin | sort -V | paste -sd ' ')," \
        "CollNet $(versions "$library" ncclCollNetPlugin | sort -V | paste -sd ' ')"
done
if [ -z "$nccl" ]; then
    echo "there is no NCCL here, as in an image for CPUs: $idle; use one with CUDA, or remove pool 2"
elif [ -z "$plugin" ]; then
    echo "NCCL finds no plug-in libnccl-net.so: $idle; install google-reduction-server"
elif [ -n "$net" ] && [ -n "$collnet" ]; then
    echo "NCCL can load the plug-in of the reducers, net $net, CollNet $collnet"
    exit
elif [ -n "$net" ]; then
    echo "NCCL loads net $net of the plug-in, and not its other half, of the reducers: $idle;" \
        "install a newer google-reduction-server, or remove pool 2"
else
    echo "NCCL does not load libnccl-net.so: $idle; install a newer google-reduction-server, or remove pool 2"
fi
test -z "$required"
