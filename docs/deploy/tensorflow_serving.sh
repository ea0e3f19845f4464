#!/bin/sh
# sh tensorflow_serving.sh MODELS [FOLDER]: writes models.config and monitoring.config into FOLDER,
# then serves MODELS by stock TensorFlow Serving: gRPC on port 8500, REST on port 8501.
# It knows no token and checks no input: keep it on this machine.
set -eu
models=$(cd "$1" && pwd)
folder=${2:-tensorflow-serving}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
echo 'model_config_list {' > "$folder/models.config"
for path in "$models"/*/; do
  name=$(basename "$path")
  set -- "$path"[0-9]*/manifest.json
  [ -e "$1" ] || continue  # no bundle
  echo "  config { name: \"$name\", base_path: \"/models/$name\", model_platform: \"tensorflow\" }"
done >> "$folder/models.config"
echo '}' >> "$folder/models.config"
echo 'prometheus_config { enable: true, path: "/monitoring/prometheus/metrics" }' > "$folder/monitoring.config"
set -- --model_config_file=/config/models.config --monitoring_config_file=/config/monitoring.config
if [ -e "$folder/batching_parameters.txt" ]; then
  set -- "$@" --enable_batching=true --batching_parameters_file=/config/batching_parameters.txt
fi
exec docker run --rm \
  -p 127.0.0.1:8500:8500 -p 127.0.0.1:8501:8501 \
  -v "$models:/models:ro" -v "$folder:/config:ro" \
  "${IMAGE:-tensorflow/serving}" --file_system_poll_wait_seconds=1 "$@"
