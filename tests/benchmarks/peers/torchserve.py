"""TorchServe: Netty and grpc-java in front, a worker in Python behind a Unix socket.

HTTP/1.1: gRPC costs TorchServe a third more. Java is started without TorchServe's
launcher, which would leave it behind. Its logs stop at errors: by default every request
writes lines to two of them.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from tests.benchmarks.peers.exchange import Exchange, from_bytes, to_bytes
from tests.benchmarks.peers.peer import ROOT, Launch, Need, Setting
from tests.benchmarks.peers.workload import Workload

HANDLER = ROOT / "tests/benchmarks/peers/torchserve_handler.py"
LOGGING = """\
<Configuration><Appenders><Console name="console"/></Appenders>
<Loggers><Root level="error"><AppenderRef ref="console"/></Root></Loggers>
</Configuration>
"""
# "models" says how a model is loaded; 1 ms is the least wait for a batch.
CONFIG = """\
inference_address=http://127.0.0.1:{ports[0]}
management_address=http://127.0.0.1:{ports[1]}
metrics_address=http://127.0.0.1:{ports[2]}
grpc_inference_address=127.0.0.1
grpc_management_address=127.0.0.1
grpc_inference_port={ports[3]}
grpc_management_port={ports[4]}
model_store={store}
load_models={name}.mar
job_queue_size=4096
disable_token_authorization=true
disable_system_metrics=true
models={{"{name}":{{"1.0":{{"defaultVersion":true,"marName":"{name}.mar",\
"minWorkers":1,"maxWorkers":1,"batchSize":{max_batch_size},"maxBatchDelay":1,\
"responseTimeout":120}}}}}}
"""


@dataclass(frozen=True, slots=True)
class TorchServe:
    """See the module."""

    name: str = "torchserve"
    needs: tuple[Need, ...] = (Need("java", "apt-get install default-jre-headless"),)
    num_ports: int = 5

    def exchange(self, workload: Workload, *, is_batching: bool) -> Exchange:
        return Exchange(
            f"/predictions/{workload.name}", to_bytes, from_bytes, is_http1=True
        )

    def launch(self, setting: Setting) -> Launch:
        name, folder = setting.workload.name, setting.folder
        store, scratch = folder / "store", folder / "tmp"
        store.mkdir()
        scratch.mkdir()
        command = [
            *(str(setting.python.with_name("torch-model-archiver")), "--version=1.0"),
            *(f"--model-name={name}", f"--handler={HANDLER}"),
            f"--export-path={store}",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        config, logging = folder / "config.properties", folder / "log4j2.xml"
        logging.write_text(LOGGING)
        config.write_text(
            CONFIG.format(
                ports=setting.ports,
                store=store,
                name=name,
                max_batch_size=setting.max_batch_size,
            )
        )
        packages = setting.packages
        return Launch(
            [
                *("java", f"-Dmodel_server_home={packages}"),
                f"-Djava.io.tmpdir={scratch}",
                f"-Dlog4j.configurationFile=file://{logging}",
                *("-cp", f"{packages}/ts/frontend/*", "org.pytorch.serve.ModelServer"),
                *("--python", str(setting.python), "-f", str(config)),
                *("-s", str(store), "-ncs", "--disable-token-auth"),
            ],
            "(Model server started)",
            f"127.0.0.1:{setting.ports[0]}",
            {
                "LOG_LOCATION": str(folder / "logs"),
                "METRICS_LOCATION": str(folder / "logs"),
                "TEMP": str(scratch),
                "TMPDIR": str(scratch),
            },
        )
