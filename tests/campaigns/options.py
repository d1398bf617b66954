"""Options of ``fl-lightning`` that many tests share."""

# Drawing takes most of the time of a run with a small net.
NO_PICTURES = (
    "--callbacks.label_counts.every 0 --callbacks.per_class_accuracy.every 0 --callbacks.per_class_accuracy.clients_every 0 "
    "--callbacks.round_forgetting.every 0 --callbacks.client_forgetting.every 0"
).split()
