# The runner with its demo model, for cluster/kubernetes.yaml and for plain Docker:
#
#   docker build -t runner:0.1.0 .
#   docker run --rm -v "$PWD/outputs:/work/outputs" runner:0.1.0 /manifests/job.yaml
#   docker run --rm --gpus all --shm-size 16g -v "$PWD/outputs:/work/outputs" \
#     -v "$PWD/job.yaml:/manifests/job.yaml:ro" -v models:/home/runner/.cache/huggingface \
#     --entrypoint torchrun runner:0.1.0 --standalone --nproc-per-node 8 -m runner /manifests/job.yaml
#
# The torch of PyPI brings its CUDA libraries along; the host needs NVIDIA's driver and container
# toolkit alone. `compile: true` needs a C compiler, which this image leaves out.

FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/runner
ENV PATH=/opt/runner/bin:$PATH
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
# What the runner needs, in a layer that stays when only its own code changes.
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > needs.txt \
    && pip install --no-cache-dir -c constraints.txt -r needs.txt
COPY runner runner
RUN pip install --no-cache-dir --no-deps .

FROM python:3.11-slim-bookworm
RUN useradd --uid 1000 --create-home runner \
    && install -d -o runner -g runner /work /work/outputs /outputs /home/runner/.cache/huggingface
COPY --from=build /opt/runner /opt/runner
COPY manifests /manifests
ENV PATH=/opt/runner/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /work
USER 1000
ENTRYPOINT ["python", "-m", "runner"]
CMD ["--help"]
