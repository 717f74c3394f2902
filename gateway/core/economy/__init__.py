"""What a token costs beside another, and when carrying old messages has cost more than folding them.

Knows prices as ratios and sizes in tokens, and no provider.
"""
