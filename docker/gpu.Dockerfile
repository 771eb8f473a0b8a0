# hvd_compress on GPUs, with Horovod over NCCL, MPI and Gloo. From the root of the checkout:
#   docker build -f docker/gpu.Dockerfile -t hvd-compress:0.1.0-gpu .
# CUDA, nvcc included, comes from the wheels that torch depends on: torch, Horovod and our kernels share one CUDA
# runtime and one NCCL, and there is no second toolkit in the image. The driver is the host's.
# What takes long comes first: a change of our sources rebuilds neither torch nor Horovod.
ARG BASE=debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171

# Compiler, torch and Horovod, without our sources. `--target development` keeps this stage.
FROM ${BASE} AS development
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ git make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 --shell /bin/bash hvd \
    && install --directory --owner=hvd --group=hvd /opt/hvd /home/hvd/hvd_compress
USER 1000:1000
WORKDIR /home/hvd/hvd_compress
ENV PATH=/opt/hvd/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/hvd && pip install pip==26.3
COPY --chown=hvd:hvd requirements/build.txt requirements/
RUN pip install -r requirements/build.txt
ARG TORCH_REQUIREMENT=torch==2.13.0
COPY --chown=hvd:hvd requirements/cuda.txt requirements/
# Then what a toolkit has and wheels lack: the folder lib64, and names without a version for the linker.
RUN pip install -r requirements/cuda.txt "$TORCH_REQUIREMENT" \
    && ln -s lib/python3.11/site-packages/nvidia /opt/hvd/nvidia \
    && ln -s lib /opt/hvd/nvidia/cu13/lib64 \
    && ln -s libcudart.so.13 /opt/hvd/nvidia/cu13/lib/libcudart.so \
    && ln -s libnccl.so.2 /opt/hvd/nvidia/nccl/lib/libnccl.so
ENV CUDA_HOME=/opt/hvd/nvidia/cu13
COPY --chown=hvd:hvd tools/compiler.py tools/install_horovod.py tools/progress.py tools/torch_version.py tools/
ARG HOROVOD=1
RUN [ "$HOROVOD" = 0 ] || HOROVOD_GPU_OPERATIONS=NCCL \
    HOROVOD_NCCL_HOME=/opt/hvd/nvidia/nccl HOROVOD_NCCL_LINK=SHARED \
    HOROVOD_CUDA_HOME=$CUDA_HOME HOROVOD_BUILD_CUDA_CC_LIST=80,90,100 HOROVOD_WITHOUT_NVTX=1 \
    PATH=$CUDA_HOME/bin:$PATH python tools/install_horovod.py
COPY --chown=hvd:hvd requirements/dev.txt requirements/
RUN pip install -c requirements/dev.txt numpy pydantic mpi4py click rich scikit-learn pytest pytest-timeout hypothesis

FROM development AS installed
COPY --chown=hvd:hvd . .
RUN pip install --no-deps --no-build-isolation . \
    && pip uninstall -y cmake ninja pybind11 nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-cccl

# What is shipped: no compiler, no sources but examples and tests.
FROM ${BASE} AS runtime
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# The package of sshd makes host keys; an image must hold none.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates openssh-client openssh-server python3 \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && useradd --create-home --uid 1000 --shell /bin/bash hvd \
    && install --directory --owner=hvd --group=hvd --mode=700 /home/hvd/.ssh \
    && install --directory --owner=hvd --group=hvd /home/hvd/hvd_compress /home/hvd/shared
COPY --from=installed --chown=hvd:hvd /opt/hvd /opt/hvd
USER 1000:1000
WORKDIR /home/hvd/hvd_compress
# For the container toolkit of NVIDIA: which of the host's GPUs and libraries of its driver to show here.
ENV PATH=/opt/hvd/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --chown=hvd:hvd pyproject.toml ./
COPY --chown=hvd:hvd tools/launches.py tools/progress.py tools/results.py tools/
COPY --chown=hvd:hvd docker/smoke_test.py docker/ssh_setup.sh docker/
COPY --chown=hvd:hvd examples examples
COPY --chown=hvd:hvd tests tests
CMD ["bash"]

RUN mpirun -np 2 --map-by :OVERSUBSCRIBE --bind-to none python docker/smoke_test.py
RUN hvd-compress doctor
