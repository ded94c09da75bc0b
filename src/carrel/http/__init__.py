"""What every component that serves HTTP needs: start and stop a server, and say no in RFC 9457."""
