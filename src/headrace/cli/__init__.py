"""The `headrace` command: one file per subcommand, heavy imports only when it runs."""
