# The artifact in a container: the package, its tests and the committed results, with the versions of constraints.txt.
#
#   docker build -t maxsim-bench .
#   docker run --name maxsim maxsim-bench                              # processor: smoke grid, interpreter, rankings, report
#   docker run --name maxsim --gpus all --shm-size 8g maxsim-bench     # GPU: every element of the paper; shared memory is for `ddp`
#   docker run --name maxsim --gpus all maxsim-bench make reproduce ELEMENT=tab:fwd
#   docker start -a maxsim                                             # goes on where it stopped
#
# What it measured and the page stay in the container; this brings them out, and the page is out/figures/local/report.html:
#
#   mkdir out && docker cp maxsim:/artifact/results out/ && docker cp maxsim:/artifact/figures out/
#
# The image has no Nsight Compute: memory traffic (tab:traffic) is computed in it, not counted, and its rows say so.
# The wheels of torch bring CUDA with them; the host needs the NVIDIA driver and the container toolkit only.
FROM python:3.12-slim-bookworm

# gcc and libc6-dev: Triton compiles its launcher on first use. git: the environment records the commit. make: every command.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc git libc6-dev make \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /artifact
COPY . .
RUN git config --system --add safe.directory /artifact && make setup

# Compiled kernels, so that a second run of a mounted cache does not compile again.
ENV TRITON_CACHE_DIR=/artifact/.cache/triton
CMD ["make", "reproduce"]
