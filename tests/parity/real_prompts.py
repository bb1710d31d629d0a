"""Twenty prompts of varied kind and length for a small chat model."""

from __future__ import annotations

STORY = (
    "The ferry left the island at dawn, an hour later than the timetable promised. Mara stood at the rail with her"
    " grandfather's notebook under her coat and watched the harbour lights go out one after the other. Nobody had asked"
    " her where she was going. The notebook held forty pages of tide tables, written in pencil, and on the last page a"
    " drawing of a lighthouse that stood on no map she had ever seen. Her grandfather had kept that light for eleven"
    " winters, or so he used to say when the fire was low. "
)

PLAIN = (
    "The capital of France is",
    "Water boils at",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "SELECT name, COUNT(*) FROM orders GROUP BY",
    '{"name": "Ada", "born": 1815, "field": "',
    "Ingredients:\n- 200 g flour\n- 2 eggs\n- 1 pinch of salt\n\nMethod:\n1.",
    "Der schnellste Weg von Berlin nach Hamburg ist",
    "La Révolution française a commencé en",
    "東京は日本の",
    "😀 means happy, 😢 means",
    "    \n\n\n  ",
    "Q: What is 17 + 25?\nA:",
    "https://www.example.com/articles/2024/",
    STORY + "When the captain finally spoke, he said:",
    STORY * 3 + "Summary:",
)

CHATS = (
    ({"role": "user", "content": "Name three primary colors."},),
    (
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ),
    (
        {"role": "user", "content": "Hi! I'm Tom."},
        {"role": "assistant", "content": "Hello Tom, how can I help you?"},
        {"role": "user", "content": "What's my name, and how many letters does it have?"},
    ),
)
