"""What handlers of HTTP requests share, whichever API they answer."""
