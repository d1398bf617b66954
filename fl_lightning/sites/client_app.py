"""The ClientApp of a site: brings each message of the server to the site's process, and its reply back."""

from multiprocessing.connection import Client
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_lightning.sites.link import receive, send, socket_of, values_of

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """A visit."""
    return _passed_on("train", message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate a model on the client's validation part."""
    return _passed_on("evaluate", message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Compare settings."""
    return _passed_on("query", message, context)


def _passed_on(kind: str, message: Message, context: Context) -> Message:
    if "site" not in context.node_config:
        raise ValueError(
            "--node-config has no site: give flower-supernode --node-config 'site=\"FOLDER\"', the folder of the site"
        )
    folder = Path(str(context.node_config["site"]))
    try:
        connection = Client(socket_of(folder), family="AF_UNIX")
    except OSError as error:
        raise ConnectionError(
            f"no process of the site answers in {folder} ({error.strerror}): start fl-lightning federation site"
        ) from error
    with connection:
        connection.send_bytes(kind.encode())
        send(connection, message.content)
        reply = receive(connection)
    if "error" in (values := values_of(reply)):
        raise RuntimeError(values["error"])
    return Message(reply, reply_to=message)
