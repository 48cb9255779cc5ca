#!/bin/sh
# The entry point of TensorFlow Serving's image: two variables name the model, and every
# argument of `docker run` is one more flag of the server; a repeated flag's last value
# wins, and --model_config_file comes before the two variables. The shell is replaced, so
# that the server receives SIGTERM and drains.
set -eu
exec tfs serve \
  --port=8500 \
  --rest_api_port=8501 \
  --drain_wait_s=5 \
  --model_name="${MODEL_NAME}" \
  --model_base_path="${MODEL_BASE_PATH}/${MODEL_NAME}" \
  "$@"
