/* Byte pairs: text to tokens, and back. */

static int kind_of(uint8_t byte)        /* blank, letter, digit or other */
{
    if (byte == ' ' || (byte >= '\t' && byte <= '\r'))
        return 0;
    if (byte >= 128 || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z'))
        return 1;
    return byte >= '0' && byte <= '9' ? 2 : 3;
}

/* The length of the word at the beginning of a text: a run of one kind with a space before it, or
 * blanks, without the last one if a word follows. */
static int32_t word_length(const uint8_t *text, int32_t length)
{
    int32_t at = 0, first = text[0] == ' ' && length > 1 && kind_of(text[1]) != 0;
    const int kind = kind_of(text[first]);
    for (at = first; at < length && kind_of(text[at]) == kind; at++)
        ;
    return kind == 0 && at < length && at > 1 ? at - 1 : at;
}

static int32_t number_at(const uint8_t *at)
{
    return at[0] | at[1] << 8;
}

/* The merge of two tokens: left, right, rank and token; NULL if there is none. */
static const uint8_t *merge_of(const uint8_t *weights, int32_t left, int32_t right)
{
    int32_t low = 0, high = MODEL_MERGES, middle;
    const uint8_t *at;
    while (low < high) {
        middle = (low + high) / 2;
        at = weights + @MERGES@ + 8 * (size_t)middle;
        if (number_at(at) < left || (number_at(at) == left && number_at(at + 2) < right))
            low = middle + 1;
        else
            high = middle;
    }
    at = weights + @MERGES@ + 8 * (size_t)low;
    return low < MODEL_MERGES && number_at(at) == left && number_at(at + 2) == right ? at : 0;
}

int32_t model_encode(const uint8_t *weights, const uint8_t *text, int32_t length, int32_t *tokens)
{
    int32_t count = 0, first, end, at, best, i;
    const uint8_t *merge, *found;
    while (length > 0) {
        end = word_length(text, length);
        first = count;
        for (i = 0; i < end; i++)
            tokens[count++] = text[i];
        text += end;
        length -= end;
        for (;;) {      /* while there is a merge, the leftmost of the first */
            found = 0;
            best = 0;
            for (at = first; at + 1 < count; at++) {
                merge = merge_of(weights, tokens[at], tokens[at + 1]);
                if (merge && (!found || number_at(merge + 4) < number_at(found + 4))) {
                    found = merge;
                    best = at;
                }
            }
            if (!found)
                break;
            tokens[best] = number_at(found + 6);
            count--;
            for (at = best + 1; at < count; at++)
                tokens[at] = tokens[at + 1];
        }
    }
    return count;
}

int32_t model_decode(const uint8_t *weights, int32_t token, uint8_t *text)
{
    const uint8_t *const at = weights + @ENDS@ + 4 * (size_t)token;
    const int32_t begin = number_at(at) | number_at(at + 2) << 16;
    const int32_t length = (number_at(at + 4) | number_at(at + 6) << 16) - begin;
    int32_t i;
    for (i = 0; i < length; i++)
        text[i] = weights[@SPELLINGS@ + begin + i];
    return length;
}
