# frozen_string_literal: true

# Splits a stream into tokens at a delimiter. What follows the last delimiter is kept for the next call.
class BufferedTokenizer
  def initialize(delimiter = $/)
    @delimiter = delimiter
    # The pieces of the unfinished token. They are joined once, when the token is complete.
    @pieces = []
  end

  # Adds data. Returns the complete tokens.
  def extract(data)
    # A delimiter of several bytes may begin in what is kept.
    overlap = @delimiter.length - 1
    if overlap.positive? && !@pieces.empty?
      last = @pieces.pop
      last = @pieces.pop + last while last.length < overlap && !@pieces.empty?
      kept = last.length > overlap ? last[0...-overlap] : ''
      @pieces << kept unless kept.empty?
      data = last[kept.length..] + data
    end
    tokens = data.split(@delimiter, -1)
    rest = tokens.pop
    unless tokens.empty?
      tokens[0] = @pieces.join << tokens[0]
      @pieces.clear
    end
    @pieces << rest if rest && !rest.empty?
    tokens
  end

  # Returns what is kept, and forgets it.
  def flush
    buffer = @pieces.join
    @pieces.clear
    buffer
  end
end
