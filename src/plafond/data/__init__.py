"""Folders of pictures become batches of latents and prompts.

::

    scans = [scan(config, index) for index, config in enumerate(datasets)]      # headers and captions only
    items = build_items(scans, divisor)                                         # resolutions, mirrored copies
    store = cache_latents(items, encode, signature=..., progress=...)           # decodes everything once
    plan, regularisation = plan_batches(store.surviving(items), batch_size, seed)
    texts = cache_text(plan.prompts(variants), encode_text, signature=..., folder=...)

    batch = plan.batch_at(step)
    latents = torch.stack([store[item] for item in batch.items])
    embeddings = [texts[prompt] for prompt in plan.captions(batch, variants)]

What could not be used is told in `Scan.problems` and `LatentStore.problems`, one sentence each.
"""
