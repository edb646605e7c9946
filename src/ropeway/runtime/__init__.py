"""What every loop and engine needs: clocks, ids, coalescing."""
