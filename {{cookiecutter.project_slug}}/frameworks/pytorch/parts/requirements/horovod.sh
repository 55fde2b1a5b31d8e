#!/usr/bin/env bash
# Builds Horovod for the Python on PATH, which must have PyTorch: bash requirements/horovod.sh. For NVIDIA GPUs, add "cuda".
# The build takes some minutes and requires CMake 3, a C++ compiler and, for GPUs, nvcc. The only change to Horovod's last
# release, of June 2023, is C++17 instead of C++14, because PyTorch requires C++17.
set -euo pipefail

release=horovod-0.28.1
sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
folder=$(mktemp --directory)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

python -m pip install --quiet cffi cloudpickle packaging psutil pyyaml setuptools wheel
python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation "${release/-/==}"
echo "$sha256  $release.tar.gz" | sha256sum --check --quiet
tar --extract --file "$release.tar.gz"
cd "$release"
sed --in-place 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt

export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_NVTX=1
export CXXFLAGS="-include cstdint" # newer compilers no longer include it by themselves
if [ "${1:-}" = cuda ]; then
    # PyTorch's wheels contain NCCL under a name that the linker doesn't find.
    nccl=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/nccl
    ln -s "$nccl/lib/libnccl.so.2" "$folder/libnccl.so"
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED HOROVOD_NCCL_INCLUDE="$nccl/include" HOROVOD_NCCL_LIB="$folder"
    export HOROVOD_CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"
fi
python -m pip install --quiet --no-build-isolation .
python -c "import horovod.torch"
