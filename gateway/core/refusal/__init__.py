"""What an upstream's error says about size. Knows neither JSON nor streams, nor what to do about it."""
