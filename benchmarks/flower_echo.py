"""A Flower app that does nothing but send back what it is sent: what Flower itself costs.

The client imports Flower and no more. The server sends the model of an experiment, in the records
that FedAvg sends it in, and waits as fedtail waits, so that only the clients' work is missing.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def echo(message: Message, context: Context) -> Message:
    """Send it back."""
    return Message(message.content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Hold the rounds, and write when each of them ended and what it carried."""
    from fedtail.engines.flower.apps import described_setting
    from fedtail.engines.flower.bridge import to_records, wire_bytes
    from fedtail.engines.flower.rpc import ask
    from fedtail.protocol import Payload

    config = context.run_config
    setting = described_setting(str(config["experiment"]))
    model = Payload({f"model/{name}": t for name, t in setting.model.tensors().items()})
    while len(nodes := list(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(0.1)
    lines = []
    for number in range(int(config["rounds"])):
        contents = {node: to_records([model], {"round": number}) for node in nodes}
        answers = ask(grid, "train", contents, 600.0, str(number))
        if any(answer.reason for answer in answers.values()):
            raise RuntimeError(str(answers))
        wire = sum(map(wire_bytes, contents.values()))
        lines.append({"time": time.time(), "wire_down": wire})
    out = Path(str(config["out"]))
    out.with_suffix(".part").write_text(json.dumps(lines))
    out.with_suffix(".part").replace(out)
