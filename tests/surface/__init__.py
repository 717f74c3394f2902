"""The product from outside: settings, command line, documents, logs, the files of the page."""
